"""Which versions of vLLM work here; stated once, for training and for evaluation."""

from importlib.metadata import PackageNotFoundError, version

from acpo.errors import ACPOError

OLDEST, NEWEST = "0.22.0", "0.31.0"
"""What TRL 1.16 is written for. It warns outside of this range; here, others are refused."""


def require_vllm(option: str) -> str:
    """The version of the installed vLLM, for an option that needs it; nothing of it is imported."""
    from packaging.version import Version

    try:
        found = version("vllm")
    except PackageNotFoundError as error:
        raise ACPOError(
            f"{option}: vllm is not installed; pip install vllm, or leave it out"
        ) from error
    # Without the local part: 0.25.1+cu129 is 0.25.1.
    if not Version(OLDEST) <= Version(Version(found).base_version) <= Version(NEWEST):
        raise ACPOError(
            f"{option}: vllm {found} is installed, and {OLDEST} to {NEWEST} work; "
            f"pip install 'vllm>={OLDEST},<={NEWEST}'"
        )
    return found
