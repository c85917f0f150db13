"""One file for each framework that relaxcomm plugs into."""
