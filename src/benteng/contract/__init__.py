"""Contracts: narrow typed payloads, one strict parser for every door, rules that a definition must keep."""

from benteng.contract.parser import PayloadLimits
from benteng.contract.path import (
    FieldPath,
    artifact_refs,
    extract_all_from_bytes,
    extract_from_bytes,
    resource_keys,
)
from benteng.contract.rules import PAYLOAD_RULES, RULES
from benteng.contract.shape import Parsed, Shape, shape_of
from benteng.contract.types import (
    Artifact,
    Audited,
    Contract,
    Currency,
    HostName,
    Kind,
    Money,
    Sha256,
    Slug,
    Target,
    TargetId,
    Waive,
    Window,
)

__all__ = [
    "PAYLOAD_RULES",
    "RULES",
    "Artifact",
    "Audited",
    "Contract",
    "Currency",
    "FieldPath",
    "HostName",
    "Kind",
    "Money",
    "Parsed",
    "PayloadLimits",
    "Sha256",
    "Shape",
    "Slug",
    "Target",
    "TargetId",
    "Waive",
    "Window",
    "artifact_refs",
    "extract_all_from_bytes",
    "extract_from_bytes",
    "resource_keys",
    "shape_of",
]
