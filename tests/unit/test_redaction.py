"""What a report must not hold."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aibox.decide.redaction import Redactor

SECRET = "Zq9x-Secret_Value.77"
PEM = "\n".join(
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "b3BlbnNzaC1rZXk",
        "AAAAB3",
        "-----END OPENSSH PRIVATE KEY-----",
    ]
)


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (f"--api-key {SECRET}", SECRET),
        (f'--api-key {SECRET} {SECRET}2 "x y" --port 8000', SECRET),
        (f"'api_key': ['{SECRET}']", SECRET),
        (f'"api_key": "{SECRET}"', SECRET),
        (f"VLLM_API_KEY={SECRET}", SECRET),
        (f"Environment=HF_TOKEN={SECRET}", SECRET),
        (f'Environment="HUGGING_FACE_HUB_TOKEN={SECRET}"', SECRET),
        (f"password = '{SECRET} with spaces'", "with spaces"),
        (f"db_password: {SECRET}", SECRET),
        (f"client_secret={SECRET}&x=1", SECRET),
        (f"GET /v1/models?api_key={SECRET} HTTP/1.1", SECRET),
        (f"?X-Amz-Signature={SECRET}&x=1", SECRET),
        (f"Authorization: Bearer {SECRET}", SECRET),
        (f"authorization: Basic {SECRET}==", SECRET),
        (f"'authorization': 'Bearer {SECRET}'", SECRET),
        (f"Proxy-Authorization: Digest {SECRET}", SECRET),
        (f"curl -H 'Bearer {SECRET}'", SECRET),
        (f"Set-Cookie: session={SECRET}; Path=/", SECRET),
        ("the token hf_AbCdEfGhIjKlMnOpQrSt was refused", "hf_AbCdEfGhIjKlMnOpQrSt"),
        ("key sk-abcdEFGH12345678 is wrong", "sk-abcdEFGH12345678"),
        ("ghp_0123456789abcdefABCDEF0123456789abcd", "ghp_0123456789"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP", "eyJzdWIiOiIxIn0"),
        (f"https://user:{SECRET}@proxy.example:3128/", SECRET),
        (f"http://{SECRET}@proxy.example/", SECRET),
        (PEM, "b3BlbnNzaC1rZXk"),
        (PEM.rsplit("\n", 1)[0], "b3BlbnNzaC1rZXk"),
        ("/home/marianne/models/x", "marianne"),
        ("/Users/marianne/x", "marianne"),
        ("owned by marianne; see /home/marianne", "marianne"),
        ("192.168.1.20:51512 - GET", "192.168.1.20"),
        ("tcp://10.0.0.7:51821", "10.0.0.7"),
        ("listening on 172.16.4.9", "172.16.4.9"),
        ("client 100.101.102.103", "100.101.102.103"),
        ("from fe80::1ff:fe23:4567:890a%eth0", "4567"),
        ("from fd12:3456:789a::1", "789a"),
        ("link/ether 52:54:00:12:34:56", "52:54:00:12:34:56"),
        ("http://ai-box.local:8000", "ai-box"),
        ("nas.fritz.box", "nas.fritz"),
        ("mail me: marianne.d@example.org", "marianne.d"),
        ("Received request: prompt: 'my private diary', params: x", "diary"),
    ],
)
def test_what_nobody_else_may_read_is_hidden(text: str, gone: str) -> None:
    hide = Redactor(["marianne"], "ai-box")
    shown = hide(text)
    assert gone not in shown
    assert hide.said()


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-batched-tokens 8192 --num-speculative-tokens 2",
        "SpecDecoding metrics: Accepted: 381 tokens, Drafted: 582 tokens",
        "GPU KV cache size: 747,706 tokens",
        "/var/cache/vllm-coder /home /srv/models/m/c",
        "127.0.0.1:8000 and ::1 and 0.0.0.0",
        "driver 580.126.16, vLLM 0.31.0, nvidia-cublas==13.0.0.19",
        "Nov 29 10:00:00 23:18:32.123456 11-29",
        "PCI:0000:01:00.0",
        '"config_key": "mtp_num_hidden_layers"',
        "a token is a part of a word; the key to it: none",
        "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (501).",
        "GPU-4b1d6e3a-0000-1111-2222-333344445555",
        "sha256 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        '"hf_overrides": null, "hf_config_path": null',
        "'api_key': None, 'hf_token': '***'",
        "KeyError: 'invalid tool call parser: x'",
        "tokenizer='/srv/models/m/c'",
    ],
)
def test_what_a_diagnosis_needs_stays(text: str) -> None:
    assert Redactor(["marianne"], "ai-box")(text) == text


def test_the_same_address_keeps_its_number() -> None:
    hide = Redactor()
    shown = hide("10.0.0.1 10.0.0.2 10.0.0.1")
    assert shown == "(address 1) (address 2) (address 1)"
    assert hide("10.0.0.2") == "(address 2)"
    assert hide.said() == ["4 × address"]


def test_the_boxs_name_and_people_are_hidden_wherever_they_stand() -> None:
    hide = Redactor(["marianne"], "orion")
    assert "orion" not in hide("Nov 29 10:00:00 orion sudo[1]: marianne : TTY=pts/0")
    assert "marianne" not in hide("session opened for user marianne(uid=1000)")
    assert hide("constellation-orionids") == "constellation-orionids"


def test_hiding_twice_changes_nothing_more() -> None:
    text = f"--api-key {SECRET} Authorization: Bearer {SECRET} /home/marianne 10.0.0.1 {PEM}"
    hide = Redactor(["marianne"])
    once = hide(text)
    assert hide(once) == once


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    Redactor(["marianne"], "orion")(text)


@given(
    st.sampled_from(["--api-key {}", "API_KEY={}", 'token: "{}"', "Authorization: Bearer {}"]),
    st.text("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ0123456789_", min_size=12),
    st.text("abcdef \n", max_size=20),
)
def test_a_secret_never_stays(form: str, secret: str, around: str) -> None:
    assume(secret not in around)  # a bare word is no secret
    assert secret not in Redactor()(f"{around} {form.format(secret)} {around}")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Environment=HF_TOKEN=aaaa1 VLLM_API_KEY=sek2 OPENAI_API_KEY=sek3 HOME=/x", "sek2"),
        ("Environment=HF_TOKEN=aaaa1 VLLM_API_KEY=sek2 OPENAI_API_KEY=sek3 HOME=/x", "sek3"),
        ('["serve", "/srv/w", "--api-key", "sekret123", "--seed", "7"]', "sekret123"),
        ('{"command": ["serve", "--hf-token","sekret123"]}', "sekret123"),
        ("PASSWORT=geheim1", "geheim1"),
        ("DB_PASS=geheim1", "geheim1"),
        ("MY_PWD='geheim1'", "geheim1"),
        ("GITLAB_PAT=geheim1", "geheim1"),
    ],
)
def test_secrets_as_units_and_records_hold_them(text: str, secret: str) -> None:
    assert secret not in Redactor()(text)


def test_what_stands_behind_a_hidden_one_stays() -> None:
    shown = Redactor()('["serve", "--api-key", "sekret123", "--seed", "7"]')
    assert '"--seed", "7"' in shown
    assert "HOME=/x" in Redactor()("Environment=HF_TOKEN=aaaa1 HOME=/x")
