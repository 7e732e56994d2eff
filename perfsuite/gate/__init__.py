"""What is allowed: budgets and baselines, and the verdict when one of them is applied to a metric.

Nothing here measures or prints. This package imports nothing by itself, and none of its baseline modules imports jax or
numpy on loading: a baseline file can be read, checked and merged where no accelerator library is installed.

`environment` says where a metric was made, `baseline` is the model of what a file records, `merging` what a save
changes of it, `baseline_file` its text and its life on disk. `verdict` judges a metric, `limits` a comparison;
`diagnosis` finds the likely cause, and `messages` makes the sentences of a result.
"""
