"""The CUDA toolkit of torch's own minor version: vLLM compiles kernels with its nvcc."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy, operation

from aibox.decide import driver_sources, toolkit
from tasks import ledger
from tasks.box import AIBOX, Box
from tasks.drift_report import is_due
from tasks.driver import evidence_of
from tasks.operations import Commands, job_command, refused


@deploy("CUDA")
def toolkit_installed(box: Box) -> None:
    """Nothing for a release that is built without CUDA."""
    cuda = box.driver.cuda
    if cuda is not None:
        toolkit_packages(name=f"CUDA toolkit {cuda}", box=box, cuda=cuda)
        compiler_proven(name="nvcc compiles a small kernel", box=box, cuda=cuda)


@operation()
def toolkit_packages(box: Box, cuda: str) -> Commands:
    """The versioned toolkit; never the unversioned names, which move on to another minor."""
    ledger.of(host).packages[toolkit.toolkit_package(cuda)] = cuda
    reasons = toolkit.toolkit_reasons(evidence_of(box), cuda)
    if not is_due(host, reasons, f"the toolkit of CUDA {cuda} is installed"):
        return
    yield job_command("cuda", AIBOX, "packages", driver_sources.toolkit_spec(box.driver))
    refusal = toolkit.toolkit_assertion(evidence_of(box), cuda)
    if refusal is not None:
        yield refused(refusal)


@operation()
def compiler_proven(box: Box, cuda: str) -> Commands:
    """Proven once for each nvcc and C library: some do not go together."""
    reasons = toolkit.proof_reasons(evidence_of(box), cuda)
    if not is_due(host, reasons, "this nvcc has compiled on this C library"):
        return
    yield job_command("compiler", AIBOX, "toolkit_proof", {"toolkit": cuda})
