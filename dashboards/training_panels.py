"""Panels on whether the model is hurt, and on slow workers."""

from __future__ import annotations

from panel import EXPOSED, RANKS, STEPS, Panel, one, rate  # a neighbour of this file

HARM = (
    Panel(
        title="How good is the averaged model?",
        description="What the averaged model reached at each evaluation, as relaxcomm train measures it or "
        "the program gives it with engine.observe_evaluation(accuracy=…). Compare with a run of bsp by "
        "choosing both above: as long as the curves end at the same height, the algorithm does not hurt.",
        unit="short",
        queries=one(f"max by (run, metric) (relaxcomm_evaluation{{{RANKS}}})", "{{metric}}, {{run}}"),
        minimum=None,
        width=12,
    ),
    Panel(
        title="Does the loss fall on every rank?",
        description="Each rank's latest loss, as the program gives it with engine.observe(loss=…); "
        "relaxcomm train does. Ranks that part have data that differ, or replicas that "
        "drift.",
        unit="short",
        queries=one(f"relaxcomm_loss{{{RANKS}}}"),
        minimum=None,
        width=12,
    ),
    Panel(
        title="How far apart are the replicas?",
        description="How far each rank's parameters were from the combined ones, as a share of their "
        "norm, sampled at synchronisations. It should not grow; above a tenth an alert says "
        "so.",
        unit="percentunit",
        queries=one(f"relaxcomm_replica_distance{{{RANKS}}} / relaxcomm_parameter_norm{{{RANKS}}}"),
        thresholds=((0.05, "yellow"), (0.1, "red")),
    ),
    Panel(
        title="Does what compression leaves out pile up?",
        description="Norm of what compression has left for later, sampled. It should level off; one "
        "that doubles in ten minutes raises an alert. No data without error feedback.",
        unit="short",
        minimum=None,
        log=True,
        queries=one(f"relaxcomm_residual_norm{{{RANKS}}}"),
    ),
    Panel(
        title="How late are results applied?",
        description="Steps by which what was applied last was late. No data for algorithms that apply "
        "everything at once.",
        unit="suffix: steps",
        queries=one(f"relaxcomm_staleness_steps{{{RANKS}}}"),
    ),
    Panel(
        title="How large are the batches?",
        description="Samples of each rank's latest batch, where data come from engine.loader.",
        unit="short",
        queries=one(f"relaxcomm_batch_size{{{RANKS}}}"),
        width=12,
    ),
    Panel(
        title="How many samples a second?",
        description="Of all ranks, where data come from engine.loader.",
        unit="suffix:/s",
        queries=one(f"sum by (run) ({rate('samples_total')})", "{{run}}"),
        width=12,
    ),
)

SLOWNESS = (
    Panel(
        title="Which rank computes longest?",
        description="A step's time without waiting. The longest bar is the slowest worker: under "
        "algorithms that synchronise, the others wait for it.",
        unit="s",
        queries=one(f"({rate('step_seconds_sum')} - {EXPOSED}) / {STEPS}"),
        kind="bars",
    ),
    Panel(
        title="How many steps a second?",
        description="Of each rank. They are equal under synchronous algorithms and part under ssp or "
        "ad_psgd.",
        unit="suffix:/s",
        queries=one(f"sum without (outcome) ({rate('steps_total')})"),
    ),
    Panel(
        title="How many steps is each rank behind?",
        description="How many steps each rank is behind. No data under synchronous algorithms, which keep "
        "all ranks at the same step.",
        unit="suffix: steps",
        queries=one(
            f"(max by (run) (sum by (run, rank) (relaxcomm_steps_total{{{RANKS}}})) "
            f"- on (run) group_right () sum by (run, rank) (relaxcomm_steps_total{{{RANKS}}})) "
            f'and on (run, rank) relaxcomm_info{{synchronous="false", {RANKS}}}'
        ),
    ),
    Panel(
        title="Does every rank answer?",
        description="Whether each rank's exporter answers Prometheus. A rank that does not while others "
        "do is stopped, swapped out or cut off.",
        unit="bool_yes_no",
        queries=one(f'up{{job="relaxcomm", {RANKS}}}'),
        kind="number",
        thresholds=((0, "red"), (1, "green")),
        width=6,
        maximum=1,
    ),
    Panel(
        title="How long since the last synchronisation?",
        description="Time since each rank last exchanged anything. A rank that trains for ten minutes "
        "without an exchange raises an alert, also before its first one, when there is no data here.",
        unit="s",
        queries=one(f"time() - relaxcomm_last_synchronisation_timestamp_seconds{{{RANKS}}}"),
        thresholds=((300, "yellow"), (600, "red")),
        width=9,
    ),
    Panel(
        title="How long does the engine itself take?",
        description="Time in relaxcomm's callbacks, waiting excluded: packing, compressing, unpacking. "
        "If it is much of the step, take a cheaper compressor.",
        unit="s",
        queries=one(f"{rate('callback_seconds_total')} / {STEPS}"),
        width=9,
    ),
)
