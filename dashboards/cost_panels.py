"""Panels on what communication costs, and what the algorithm saves."""

from __future__ import annotations

from panel import EXPOSED, RANKS, SENT, STEPS, Panel, Query, one, rate  # a neighbour of this file

BOTTLENECK = (
    Panel(
        title="Where does the time of a step go?",
        description="Mean over the ranks. Exposed communication is time in which a rank stands and "
        "waits for the network; the rest is computing, with communication hidden behind it. "
        "If the red part is thin, a faster network or fewer bytes gain nothing.",
        unit="s",
        queries=(
            Query(
                "A",
                f"(sum by (run) ({rate('step_seconds_sum')}) - sum by (run) ({EXPOSED})) "
                f"/ sum by (run) ({STEPS})",
                "computing, {{run}}",
            ),
            Query(
                "B", f"sum by (run) ({EXPOSED}) / sum by (run) ({STEPS})", "exposed communication, {{run}}"
            ),
        ),
        stacked=True,
        red="exposed communication, .*",
    ),
    Panel(
        title="How much of a step waits for the network?",
        description="Share of the step in which each rank waits for the network. Above one half "
        "communication is the bottleneck (an alert says so), unless one rank is slow and "
        "the others wait for it: see the last row.",
        unit="percentunit",
        queries=one(f"{EXPOSED} / {rate('step_seconds_sum')}"),
        thresholds=((0.25, "yellow"), (0.5, "red")),
        maximum=1,
    ),
    Panel(
        title="How much communication hides behind computing?",
        description="Seconds of communication in each second. Hidden: exchanges are on their way while "
        "the rank computes (until it takes the result). What is hidden costs nothing.",
        unit="percentunit",
        queries=(
            Query("A", EXPOSED, "rank {{rank}} exposed, {{run}}"),
            Query("B", rate("hidden_communication_seconds_total"), "rank {{rank}} hidden, {{run}}"),
        ),
        dashed=".* hidden, .*",
    ),
    Panel(
        title="How long are most steps, and the slowest?",
        description="Half of the steps are faster than the lower line and 95 % faster than the upper "
        "one, within the histogram's buckets (1 ms to 100 s). A wide gap with local steps "
        "is normal: few steps synchronise.",
        unit="s",
        minimum=None,
        log=True,
        queries=tuple(
            Query(
                letter,
                f"histogram_quantile({quantile}, sum by (run, le) ({rate('step_seconds_bucket')}))",
                f"{name}, {{{{run}}}}",
            )
            for letter, quantile, name in (("A", 0.5, "median"), ("B", 0.95, "95 %"))
        ),
        width=12,
    ),
    Panel(
        title="How long does an exchange take?",
        description="Mean time from the issue of an operation until its result is taken.",
        unit="s",
        queries=one(
            f"sum by (run, primitive) ({rate('exchange_seconds_sum')}) "
            f"/ sum by (run, primitive) ({rate('exchange_seconds_count')})",
            "{{primitive}}, {{run}}",
        ),
        width=12,
    ),
)

SAVINGS = (
    Panel(
        title="How many fold fewer?",
        description="How many times fewer bytes were sent, since the start, than synchronising in every "
        "step in full precision would have.",
        unit="suffix:x",
        queries=one(
            f"sum by (run) (relaxcomm_bytes_uncompressed_total{{{RANKS}}}) "
            f"/ sum by (run) (relaxcomm_bytes_sent_total{{{RANKS}}})",
            "{{run}}",
        ),
        kind="number",
        width=4,
    ),
    Panel(
        title="What share of steps is local?",
        description="Local steps as a share of all steps, since the start: 0 synchronises always, 1 never.",
        unit="percentunit",
        queries=one(
            f'sum by (run) (relaxcomm_steps_total{{outcome="local", {RANKS}}}) '
            f"/ sum by (run) (relaxcomm_steps_total{{{RANKS}}})",
            "{{run}}",
        ),
        kind="number",
        width=4,
        maximum=1,
    ),
    Panel(
        title="How many bytes were saved?",
        description="Bytes that were not sent, of all ranks, since the start. Below zero the algorithm "
        "sends more than full synchronisation.",
        unit="decbytes",
        queries=one(
            f"sum by (run) (relaxcomm_bytes_uncompressed_total{{{RANKS}}}) "
            f"- sum by (run) (relaxcomm_bytes_sent_total{{{RANKS}}})",
            "{{run}}",
        ),
        kind="number",
        width=4,
        minimum=None,
    ),
    Panel(
        title="How much is sent, and how much would be?",
        description="Bytes a second that each rank sends, and (dashed) what synchronising in every step "
        "at this speed would send.",
        unit="Bps",
        queries=(
            Query("A", SENT, "rank {{rank}}, {{run}}"),
            Query("B", rate("bytes_uncompressed_total"), "rank {{rank}} full synchronisation, {{run}}"),
        ),
        dashed=".* full synchronisation, .*",
        width=12,
    ),
    Panel(
        title="What are the bytes sent for?",
        description="Bytes a second of all ranks, by exchange primitive; votes and other things that the "
        "engine sends itself have their own names. Averages for evaluations (dashed) are traffic, too, but "
        "not of the training, so no other panel counts them.",
        unit="Bps",
        queries=(
            Query("A", f"sum by (run, primitive) ({rate('bytes_sent_total')})", "{{primitive}}, {{run}}"),
            Query("B", f"sum by (run) ({rate('evaluation_bytes_sent_total')})", "evaluations, {{run}}"),
        ),
        stacked=True,
        dashed="evaluations, .*",
    ),
    Panel(
        title="Who receives most?",
        description="Bytes a second that each rank receives. A rank far above the others is a hub of "
        "the topology.",
        unit="Bps",
        queries=one(f"sum without (primitive) ({rate('bytes_received_total')})"),
    ),
    Panel(
        title="How near is the trigger to its threshold?",
        description="What an adaptive trigger such as selsync's compared, and (dashed) its threshold: "
        "above it the ranks synchronise. No data for algorithms without one.",
        unit="short",
        queries=(
            Query("A", f"relaxcomm_trigger_value{{{RANKS}}}", "rank {{rank}} value, {{run}}"),
            Query("B", f"max by (run, rule) (relaxcomm_trigger_threshold{{{RANKS}}})", "threshold, {{run}}"),
        ),
        dashed="threshold, .*",
    ),
)
