"""pytest's hooks, each subject in a module of its own. `perfsuite.plugin` registers them, and nothing imports them."""
