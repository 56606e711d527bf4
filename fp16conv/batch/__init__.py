"""Many models at once: find them, analyze each in a process of its own, keep the results, show them."""

from fp16conv.batch.audit import Audited, Settings, audit_models
from fp16conv.batch.discovery import find_models
from fp16conv.batch.rows import Row, Status

__all__ = ["Audited", "Row", "Settings", "Status", "audit_models", "find_models"]
