"""Planning: costs, the minimum cut, PrecisionPlan and its file."""

from fp16conv.planning.casts import assignment_cost, replan_casts
from fp16conv.planning.costs import CostModel, estimate_costs
from fp16conv.planning.devices import DEFAULT_DEVICE, Device, device_names, load_device
from fp16conv.planning.macs import macs
from fp16conv.planning.plan import Cast, Decision, PrecisionPlan
from fp16conv.planning.planner import make_plan, predict

__all__ = [
    "DEFAULT_DEVICE",
    "Cast",
    "CostModel",
    "Decision",
    "Device",
    "PrecisionPlan",
    "assignment_cost",
    "device_names",
    "estimate_costs",
    "load_device",
    "macs",
    "make_plan",
    "predict",
    "replan_casts",
]
