"""The CUDA toolkit of a box: the one of torch's own CUDA minor, proven by a compiled kernel."""

from aibox.decide.driver_evidence import Evidence
from aibox.decide.refusal import Refusal

# The first nvcc that compiles for sm_120 in FlashInfer's words: "SM 12.x requires CUDA >= 12.9".
FIRST_FOR_BLACKWELL = (12, 9)


def toolkit_package(cuda: str) -> str:
    """ "13.0" -> "cuda-toolkit-13-0". The unversioned names would follow the newest release."""
    return f"cuda-toolkit-{cuda.replace('.', '-')}"


def cuda_home(cuda: str) -> str:
    """CUDA_HOME for the server and for what compiles its kernels."""
    return f"/usr/local/cuda-{cuda}"


def toolkit_reasons(evidence: Evidence, cuda: str | None) -> list[str]:
    """Why the toolkit must be installed; nothing without CUDA."""
    if cuda is None:
        return []
    if toolkit_package(cuda) not in evidence.packages:
        return [f"{toolkit_package(cuda)} is not installed"]
    return [] if cuda in evidence.nvcc else [f"{cuda_home(cuda)}/bin/nvcc is missing"]


def proof_reasons(evidence: Evidence, cuda: str | None) -> list[str]:
    """Why a small kernel must be compiled (again): never done, or done with something else."""
    if cuda is None:
        return []
    proof, nvcc = evidence.cuda_proof, evidence.nvcc.get(cuda)
    if proof is None or proof.toolkit != cuda:
        return ["no kernel has been compiled with it yet"]
    changes = []
    if proof.nvcc != nvcc:
        changes.append(f"nvcc was {proof.nvcc} at the last proof and is {nvcc or 'missing'} now")
    if evidence.glibc is not None and proof.glibc != evidence.glibc:
        changes.append(f"glibc was {proof.glibc} at the last proof and is {evidence.glibc} now")
    return changes


def toolkit_assertion(evidence: Evidence, cuda: str | None) -> Refusal | None:
    """After the install: nvcc is there, and of torch's own minor."""
    if cuda is None:
        return None
    found = evidence.nvcc.get(cuda)
    if found is not None and f"{found}.".startswith(f"{cuda}."):
        return None
    nvcc = f"{cuda_home(cuda)}/bin/nvcc"
    return Refusal(
        f"{nvcc} is {found}" if found else f"{nvcc} is missing",
        f"nvcc of CUDA {cuda}, which torch is built for: another minor's headers do not fit",
        f"on the box: `apt-get install --reinstall {toolkit_package(cuda)}`, then run again",
    )


def toolkit_refusal(cuda: str | None) -> Refusal | None:
    """A release whose CUDA is too old for the card's kernels can never serve on it."""
    if cuda is None or tuple(int(part) for part in cuda.split(".")) >= FIRST_FOR_BLACKWELL:
        return None
    return Refusal(
        f"a release built for CUDA {cuda}",
        "CUDA 12.9 or newer: older compilers know no sm_120",
        "set vllm_version to one whose lock holds a newer CUDA",
    )
