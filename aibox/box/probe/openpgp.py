"""Keys of OpenPGP."""

import base64
import hashlib
import re


def fingerprint(armored: str) -> str | None:
    """The OpenPGP v4 fingerprint of the first key in an armored text: 40 hex digits.

    RFC 4880, 12.2: SHA-1 over 0x99, two octets of length, and the public key packet's body.
    """
    found = re.search(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(?:[A-Za-z]+:.*\n)*\s*\n(.+?)\n(?:=\S{4}\s*\n)?"
        r"-----END",
        armored.replace("\r\n", "\n"),
        re.DOTALL,
    )
    if found is None:
        return None
    try:
        body = first_packet(base64.b64decode("".join(found[1].split()), validate=True))
    except (ValueError, IndexError):
        return None
    if body is None or body[0] != 4:
        return None
    digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False)
    return digest.hexdigest().upper()


def first_packet(data: bytes) -> bytes | None:
    """The body of the first packet, when it is a public key (RFC 4880, 4.2). Raises IndexError."""
    head, first = data[0], data[1]
    if head & 0x40:  # the new format
        tag, at = head & 0x3F, 2
        if first < 192:
            length = first
        elif first < 224:
            length, at = ((first - 192) << 8) + data[2] + 192, 3
        else:
            length, at = int.from_bytes(data[2:6], "big"), 6
    else:
        octets = 1 << (head & 3)
        tag, at = (head >> 2) & 0xF, 1 + octets
        length = int.from_bytes(data[1:at], "big")
    whole = len(data) >= at + length and length > 0
    return data[at : at + length] if head & 0x80 and tag == 6 and whole else None
