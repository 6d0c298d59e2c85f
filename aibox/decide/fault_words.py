"""What a fault's line tells a person: what was found and the remedy, with the numbers in it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from aibox.decide import memory_account
from aibox.decide.fault_about import SITE, About
from aibox.decide.fault_lines import Line
from aibox.decide.nearest import nearest

Groups: TypeAlias = Mapping[str, str]
Told: TypeAlias = tuple[str, str]  # found, remedy


@dataclass(frozen=True)
class Facts:
    """The log as a whole, for remedies that need more than their own line."""

    about: About
    log: Sequence[Line]
    lines: Sequence[str]

    @cached_property
    def speaks_vllm(self) -> bool:
        return any(line.process or "vllm" in line.text.lower() for line in self.log)

    @cached_property
    def account(self) -> memory_account.Account:
        return memory_account.account(self.lines)

    @cached_property
    def text(self) -> str:
        return "\n".join(line.text for line in self.log)

    @cached_property
    def prefix_cache_with_mtp(self) -> bool | None:
        """Whether both are on; None where neither the flags nor the log tell."""
        flags = self.about.flags
        if flags:
            cached = flags.get("enable-prefix-caching", True)  # vLLM's default is on
            return cached is not False and "speculative-config" in flags
        drafts = re.search(r"speculative_config'?[=:] ?(None|SpeculativeConfig|\{)", self.text)
        caching = re.search(r"enable_prefix_caching'?[=:] ?(True|False)", self.text)
        if drafts is None:
            return None
        return drafts[1] != "None" and (caching is None or caching[1] == "True")

    def found_in_log(self, pattern: str) -> str | None:
        found = re.search(pattern, self.text)
        return found[1].rstrip(".") if found else None


def words(found: str, remedy: str) -> Callable[[Groups, Facts], Told]:
    """Both sentences filled in: with the groups, and what is known of the server."""

    def tell(groups: Groups, facts: Facts) -> Told:
        about = facts.about
        known = {
            "unit": about.unit,
            "user": about.user or "vllm",
            "cache": f"/var/cache/{about.unit.removesuffix('.service')}",
            "weights": about.weights or "the weights' folder",
            "release": about.release or "the release",
            "site": SITE,
            "card": about.card,
            **groups,
        }
        return found.format(**known), remedy.format(**known)

    return tell


# --- memory ------------------------------------------------------------------------------------


def told_mamba(groups: Groups, facts: Facts) -> Told:
    wanted, blocks = int(groups["wanted"]), int(groups["blocks"])
    about = facts.about
    found = f"{wanted} sequences do not fit {blocks} state blocks: each sequence takes one"
    fitting = blocks // 32 * 32 if blocks >= 32 else blocks
    if not fitting:
        return found, more_memory(facts, None)
    spare = f"; {fitting} leaves some room" if fitting < blocks else ""
    lower = f"{about.setting('max-num-seqs', fitting)}, because there are {blocks} blocks{spare}"
    return found, f"{lower}; or {more_memory(facts, wanted / blocks)}"


def more_memory(facts: Facts, grows: float | None) -> str:
    """The other way out: raise the utilisation, to a number where one can be told."""
    about, account = facts.about, facts.account
    enough = None
    if grows is not None:
        enough = memory_account.utilization_for(account, grows, about.utilization, about.card_bytes)
    if enough is not None:
        return f"{about.setting('gpu-memory-utilization', f'{enough:g}')} (an estimate)"
    place = about.file_of("gpu-memory-utilization")
    return f"raise gpu-memory-utilization (now {about.utilization:g}) in {place}"


def told_kv_cache(groups: Groups, facts: Facts) -> Told:
    needed, there = float(groups["needed"]), float(groups["there"])
    found = (
        f"one request of {int(groups['length']):,} tokens needs {needed:g} GiB of KV cache, and "
        f"{there:g} GiB are left for it"
    )
    about, fits = facts.about, groups.get("fits")
    grows = needed / there if there > 0 else None
    if fits is None:
        place = about.file_of("max-model-len")
        return found, f"lower max-model-len in {place}; or {more_memory(facts, grows)}"
    lower = about.setting("max-model-len", f"{fits} or less")
    return found, f"{lower}; or {more_memory(facts, grows)}"


def told_kv_tokens(groups: Groups, facts: Facts) -> Told:
    found = f"a context of {groups['length']} tokens, and a KV cache of {groups['fits']}"
    lower = facts.about.setting("max-model-len", f"{groups['fits']} or less")
    return found, f"{lower}; or {more_memory(facts, None)}"


def told_no_kv_cache(_groups: Groups, facts: Facts) -> Told:
    about = facts.about
    found = f"nothing is left for the KV cache at a utilisation of {about.utilization:g}"
    return found, f"{more_memory(facts, None)}; or serve smaller weights"


def told_gpu_held(groups: Groups, facts: Facts) -> Told:
    about, free, card = facts.about, float(groups["free"]), float(groups["card"])
    found = (
        f"{free:g} of {card:g} GiB are free on the card, and a utilisation of "
        f"{groups['share']} wants {groups['wanted']} GiB"
    )
    if about.holders:
        named = ", ".join(str(one) for one in about.holders)
        found, first = f"{found}; it is held by {named}", f"end what holds the card: {named}"
    else:
        first = "end what holds the card's memory: `nvidia-smi` on the box lists it"
    least = math.floor(free / card * 100) / 100 if card else 0
    if least < 0.5:  # a server with less would not hold its weights
        return found, f"{first}; then start it again"
    return found, f"{first}; or {about.setting('gpu-memory-utilization', f'{least:g} or less')}"


def told_out_of_memory(groups: Groups, facts: Facts) -> Told:
    about = facts.about
    wanted, card, free = (groups.get(name) for name in ("wanted", "card", "free"))
    found = "the card's memory ran out"
    found += f": {wanted} more were wanted" if wanted else ""
    found += f", {free} of {card} were free" if card and free else ""
    lower = max(0.05, round(about.utilization - 0.03, 2))
    holders = ", ".join(str(one) for one in about.holders)
    first = f"end what else holds the card: {holders}; or " if holders else ""
    return found, (
        f"{first}leave more beside the KV cache: "
        f"{about.setting('gpu-memory-utilization', f'{lower:g}')}; or lower max-num-seqs in "
        f"{about.file_of('max-num-seqs')}"
    )


def told_warm_up(groups: Groups, facts: Facts) -> Told:
    count = int(groups["count"])
    found = f"the card's memory ran out while warming up with {count} requests"
    about = facts.about
    lower = about.setting("max-num-seqs", max(1, count // 2 // 32 * 32 or count // 2))
    utilization = max(0.05, round(about.utilization - 0.03, 2))
    return found, f"{lower}; or {about.setting('gpu-memory-utilization', f'{utilization:g}')}"


# --- driver and card ---------------------------------------------------------------------------


def told_mismatch(groups: Groups, facts: Facts) -> Told:
    about = facts.about
    library = (
        groups.get("library")
        or facts.found_in_log(r"NVML library version: ([\d.]+)")
        or facts.found_in_log(r"the client\b.{0,40} has the version ([\d.]+)")
        or about.driver_installed
    )
    module = (
        groups.get("module")
        or facts.found_in_log(r"kernel module has the version ([\d.]+)")
        or about.driver_loaded
    )
    library, module = (one.rstrip(".") if one else None for one in (library, module))
    if library and library == module:  # the other one is not what the log names
        module = about.driver_loaded if about.driver_loaded != library else None
    found = (
        f"the driver's library is {library or 'of an unknown version'}, the loaded module "
        f"{module or 'of another'}: the driver was upgraded under it"
    )
    return found, "reboot the box: sudo systemctl reboot (a deploy does it by itself when needed)"


def told_too_old(groups: Groups, facts: Facts) -> Told:
    loaded = facts.about.driver_loaded
    version = f" {loaded}" if loaded else ""
    spoken = groups.get("cuda")
    cuda = f", which speaks CUDA {int(spoken) // 1000}.{int(spoken) % 1000 // 10}" if spoken else ""
    return (
        f"the driver{version}{cuda} is older than the CUDA this release was built with",
        f"set driver_version to 580.65.06 or newer in {SITE}, and deploy",
    )


def told_no_device(_groups: Groups, facts: Facts) -> Told:
    loaded = facts.about.driver_loaded
    return (
        f"CUDA finds no card{f' (driver {loaded} is loaded)' if loaded else ''}",
        f"look at `nvidia-smi -L` on the box; with several cards gpu_uuid in {SITE} must be one of "
        "them; a deploy mends the driver",
    )


def told_hardware(groups: Groups, _facts: Facts) -> Told:
    return (
        f"the driver reports Xid {groups['xid']} for the card at {groups['pci']}",
        "look it up in NVIDIA's list of Xid errors; reboot, and where it comes back look at the "
        "card's power, cooling and slot",
    )


def told_illegal_with_pair(groups: Groups, facts: Facts) -> Told | None:
    if facts.prefix_cache_with_mtp is not True:
        return None
    back = "; the server came back by itself" if facts.about.serves else ""
    return (
        f"{said_of(groups)} with prefix caching and MTP both on: an open class of bugs of vLLM for "
        f"hybrid models{back}",
        f"set prefix_cache_with_mtp: off in {facts.about.card} (costs time to first token), or "
        "wait for a fixed release: systemd brings the server back by itself",
    )


def told_illegal(groups: Groups, facts: Facts) -> Told | None:
    if facts.prefix_cache_with_mtp is True:
        return None
    about = facts.about
    ways = []
    if facts.prefix_cache_with_mtp is None:
        ways.append(
            f"where prefix caching and MTP are both on, set prefix_cache_with_mtp: off in "
            f"{about.card}"
        )
    if str(about.flags.get("attention-backend", "FLASHINFER")).upper() == "FLASHINFER":
        ways.append(about.setting("attention-backend", "TRITON_ATTN"))
    back = "; the server came back by itself" if about.serves else ""
    remedy = "; or ".join([*ways, "wait: systemd brings the server back by itself"])
    return f"{said_of(groups)}{back}", remedy


def said_of(groups: Groups) -> str:
    if groups.get("xid"):
        return f"a kernel on the card touched memory it may not (Xid {groups['xid']})"
    return "a kernel on the card touched memory it may not"


# --- the command line --------------------------------------------------------------------------


def flag_name(text: str) -> str:
    """ "--max-num-seqs/-x" and "max_num_seqs" as the card writes it."""
    return re.split("[/=]", text, maxsplit=1)[0].lstrip("-").replace("_", "-")


def told_unknown_flag(groups: Groups, facts: Facts) -> Told:
    named = [word for word in groups["flags"].split("--") if word.strip()]
    flags = [flag_name(word.split()[0]) for word in named] or [groups["flags"]]
    about = facts.about
    places = " and ".join(f"{flag} out of {about.file_of(flag)}" for flag in dict.fromkeys(flags))
    return f"vLLM does not know {', '.join(f'--{flag}' for flag in flags)}", f"take {places}"


def told_flag_value(groups: Groups, facts: Facts) -> Told:
    flag = flag_name(groups["flag"])
    value = facts.about.flags.get(flag)
    now = "" if value is None else f" (now {value!r})"
    choices = groups.get("choices")
    hint = f" to one of {choices}" if choices else ""
    return (
        f"--{flag}: {groups['complaint'].strip()}",
        f"set {flag}{hint} in {facts.about.file_of(flag)}{now}",
    )


def told_name(flag: str, what: str) -> Callable[[Groups, Facts], Told]:
    """A name that is not among those in the line."""

    def tell(groups: Groups, facts: Facts) -> Told:
        wrong, known = groups["name"], re.findall(r"[\w.+-]+", groups.get("known", ""))
        folded = {name.lower(): name for name in known}
        close = nearest(wrong.lower(), folded, alike=0.5)
        to = f"{folded[close]} (the nearest that exists)" if close else "one that exists"
        listed = f": {', '.join(known)}" if known and not close else ""
        return f"there is no {what} {wrong!r}", facts.about.setting(flag, to) + listed

    return tell


def told_backend(groups: Groups, facts: Facts) -> Told:
    reason = groups.get("reason", "").strip()
    return (
        f"the attention backend {groups['name']} does not serve this model here"
        + (f": {reason}" if reason else ""),
        f"{facts.about.setting('attention-backend', 'another')}, or take it out: vLLM then chooses",
    )


def told_cards(groups: Groups, facts: Facts) -> Told:
    """A deploy counts the cards before: this one was hidden, or gone, when the server started."""
    wanted, there = groups["wanted"], groups["there"]
    return (
        f"the flags spread the model over {wanted} cards, and CUDA shows {there}",
        f"look at `nvidia-smi -L` on the box, then deploy; or "
        f"{facts.about.setting('tensor-parallel-size', there)}",
    )


def told_heads(groups: Groups, facts: Facts) -> Told:
    heads, size = int(groups["heads"]), groups["size"]
    fitting = ", ".join(str(one) for one in range(1, 17) if heads % one == 0)
    return (
        f"{heads} attention heads can't be cut over {size} cards",
        facts.about.setting("tensor-parallel-size", f"one of {fitting}"),
    )


def told_context(groups: Groups, facts: Facts) -> Told:
    fits = int(groups["fits"])
    longer = groups.get("longer", "")
    most = max(fits, int(longer)) if longer.isdigit() else fits
    found = f"a context of {int(groups['length']):,} tokens, and the model has {most:,}"
    return found, facts.about.setting("max-model-len", f"{most} or less")


def told_speculative(groups: Groups, facts: Facts) -> Told:
    complaint = groups.get("complaint", "").strip()
    key = groups.get("key", "")
    what = f"{key}: {complaint}" if key else complaint
    return (
        f"vLLM refuses speculative-config{f': {what}' if what else ''}",
        f"mend speculative-config in {facts.about.file_of('speculative-config')}; for MTP: "
        "{method: mtp, num_speculative_tokens: 2}",
    )


def told_config(groups: Groups, facts: Facts) -> Told:
    flag = flag_name(groups["key"])
    return (
        f"vLLM refuses {flag}: {groups['complaint'].strip()}",
        f"mend {flag} in {facts.about.file_of(flag)}",
    )


def told_quantization(groups: Groups, facts: Facts) -> Told:
    return (
        f"the quantisation {groups['name']} can't be served here",
        f"take quantization out of {facts.about.file_of('quantization')}, or serve weights that "
        "are not quantised this way",
    )


def told_batched(groups: Groups, facts: Facts) -> Told:
    least = groups["least"]
    return (
        f"max-num-batched-tokens {groups['number']} is less than {groups['what']} {least}",
        facts.about.setting("max-num-batched-tokens", f"{least} or more"),
    )


# --- the surroundings --------------------------------------------------------------------------


def told_port(groups: Groups, facts: Facts) -> Told:
    about = facts.about
    port = groups.get("port") or about.port
    named = "the server's port" if port is None else f"port {port}"
    if about.port_owner is not None and str(port) == str(about.port or port):
        owner = about.port_owner
        return (
            f"{named} is taken by {owner}",
            f"stop {owner.name} (pid {owner.pid}), or set server_port to a free one in {SITE}",
        )
    listing = f"sudo ss -ltnp 'sport = :{port}'" if port else "sudo ss -ltnp"
    return (
        f"{named} is taken",
        f"end its owner, which this names: {listing}; or set server_port in {SITE}",
    )


def told_cache(groups: Groups, facts: Facts) -> Told | None:
    path = groups["path"]
    about = facts.about
    if is_weight(path, about):
        return None
    theirs = re.search(r"/\.\w|vllm|triton|flashinfer|inductor|huggingface|/nonexistent", path)
    if not (theirs or facts.speaks_vllm or path.startswith(about_cache(about))):
        return None
    cache, user = about_cache(about), about.user or "vllm"
    return (
        f"the server's user {user} may not write {path}",
        f"run the deploy: its unit gives HOME and every cache a directory of its own ({cache}, "
        f"VLLM_CACHE_ROOT and the others); and see that they are its: "
        f"sudo chown -R {user}: {cache} /var/lib/{about.unit.removesuffix('.service')}",
    )


def about_cache(about: About) -> str:
    return f"/var/cache/{about.unit.removesuffix('.service')}"


def is_weight(path: str, about: About) -> bool:
    if about.weights and path.startswith(about.weights.rstrip("/")):
        return True
    return bool(re.search(r"\.safetensors|(?:config|tokenizer\w*|index)\.json$", path))


def told_unreadable(groups: Groups, facts: Facts) -> Told | None:
    about, path = facts.about, groups["path"]
    if not is_weight(path, about):
        return None
    user = about.user or "vllm"
    return (
        f"the server's user {user} may not read {path}",
        f"run the deploy, which sets owner and mode of the weights; or: sudo chmod o+r {path}, "
        "and x for others on its folders",
    )


def told_weight_gone(groups: Groups, facts: Facts) -> Told:
    path = groups["path"]
    return (
        f"{path} is not there, or the server's user may not read it",
        f"run the deploy: it fetches what is missing and sets owner and mode "
        f"(of {facts.about.weights or 'the weights'})",
    )


def told_missing(groups: Groups, facts: Facts) -> Told:
    names = re.findall(r"[^'\"{},\s/]+\.\w+(?=['\"])", groups["names"])
    shown = ", ".join(sorted(names)[:5]) or groups["names"]
    count = f"{len(names)} files" if len(names) > 5 else "files"
    return (
        f"{count} of the weights are missing: {shown}",
        "run the deploy: it fetches the missing "
        + ("file" if len(names) == 1 else "files")
        + f" into {facts.about.weights or 'the weights folder'}",
    )


def told_head(_groups: Groups, facts: Facts) -> Told:
    place = facts.about.file_of("speculative-config")
    return (
        "MTP is on, and the weights do not hold its head: the checkpoint was stripped of it",
        f"turn MTP off: take speculative-config out of {place}; or fetch a revision that has the "
        "head (its index lists mtp.* tensors)",
    )


def told_disk(groups: Groups, _facts: Facts) -> Told:
    path = groups.get("path")
    return (
        f"the disk is full{f': {path}' if path else ''}",
        f"make room: `df -h` on the box; `sudo du -xh -d2 {_folder(path)} | sort -h | tail` shows "
        "what takes it",
    )


def _folder(path: str | None) -> str:
    return path.rsplit("/", 1)[0] or "/" if path and path.startswith("/") else "/var /opt /srv"


def told_killed(groups: Groups, facts: Facts) -> Told | None:
    """The kernel's killer, where it took ours."""
    whose = groups.get("whose", "")
    stem = facts.about.unit.removesuffix(".service")
    if not re.search(rf"vllm|{re.escape(stem)}", whose, re.IGNORECASE):
        return None
    return (
        "the box's memory (not the card's) ran out, and the kernel killed the server",
        "free memory on the box, or add swap: `free -h`; see who took it: "
        "sudo journalctl -k -b -g 'oom|Killed process'",
    )


def told_of_unit(found: str, remedy: str) -> Callable[[Groups, Facts], Told | None]:
    """A sentence of systemd's, where it is about the server's own unit."""
    fill = words(found, remedy)

    def tell(groups: Groups, facts: Facts) -> Told | None:
        ours = groups["of"] == facts.about.unit or "vllm" in groups["of"]
        return fill(groups, facts) if ours else None

    return tell
