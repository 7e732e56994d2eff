"""Model surgery, and start-up over a mesh. docs/workloads/surgery.md has the measurements.

    plan = bert_tensor_parallel_plan(config)
    module, optimizer = make_module_opt(lambda key: BertForMaskedLM(config, key=key), tx, mesh, plan, key=key)

| module | has |
|---|---|
| `module_paths` | sub-modules and their paths |
| `transforms` | replacing those that match the patterns of a plan: the fast way, one `equinox.tree_at`, and many |
| `replacing` | replacing at given paths |
| `tensor_parallel` | layers with how they are split, BERT's plan, partition specs |
| `sharding` | partition specs and a mesh; train steps over it |
| `start_up` | all of it in one compiled program |
"""

from perfsuite.workloads.surgery.module_paths import iter_module
from perfsuite.workloads.surgery.sharding import module_shardings
from perfsuite.workloads.surgery.start_up import StartUp, make_module_opt
from perfsuite.workloads.surgery.tensor_parallel import (
    Partitioned,
    bert_tensor_parallel_plan,
    column_parallel,
    partition_specs,
    partitioned,
    row_parallel,
)
from perfsuite.workloads.surgery.transforms import (
    PlanError,
    apply_transforms,
    apply_transforms_batched,
    apply_transforms_one_by_one,
)

__all__ = [
    "Partitioned",
    "PlanError",
    "StartUp",
    "apply_transforms",
    "apply_transforms_batched",
    "apply_transforms_one_by_one",
    "bert_tensor_parallel_plan",
    "column_parallel",
    "iter_module",
    "make_module_opt",
    "module_shardings",
    "partition_specs",
    "partitioned",
    "row_parallel",
]
