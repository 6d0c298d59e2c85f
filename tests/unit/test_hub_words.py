"""What the hub's refusals mean: gated, no such repository and no such revision are told apart."""

import pytest

from aibox.decide.hub import Asked, passing, refusal_of


def asked(*, with_token: bool = False) -> Asked:
    return Asked("https://hub", "a/b", "c" * 40, "config.json", with_token)


@pytest.mark.parametrize(
    ("status", "code", "with_token", "found", "remedy"),
    [
        (401, "GatedRepo", False, "a/b is gated: the hub wants a token (401", "ask for access"),
        (403, "GatedRepo", False, "a/b is gated: the hub wants a token (403", "secrets/hub-token"),
        (403, "GatedRepo", True, "not open to this token (403", "with the token's account"),
        (401, "", True, "the hub does not know our token", "settings/tokens"),
        (401, "RepoNotFound", False, "knows no a/b, or does not show it to us (401)", "HF_TOKEN"),
        (404, "RepoNotFound", True, "knows no a/b, or does not show it to us (404)", "in the card"),
        (404, "RevisionNotFound", True, f"a/b has no commit {'c' * 40}", "make lock-model"),
        (404, "EntryNotFound", True, "config.json is not on the hub (404", "pin the weights anew"),
        (404, "", False, "config.json is not on the hub (404", "this commit"),
        (400, "", True, "the hub answered with 400 at https://hub/a/b", "run the deploy again"),
        (410, "Odd", True, "the hub answered with 410 Odd at", "run the deploy again"),
    ],
)
def test_a_refusal_of_the_hub_is_told(
    status: int, code: str, with_token: bool, found: str, remedy: str
) -> None:
    refusal = refusal_of(status, code, asked(with_token=with_token))
    assert found in refusal.found
    assert remedy in refusal.remedy


def test_a_passing_trouble_is_tried_again() -> None:
    assert [
        status for status in (400, 401, 403, 404, 408, 416, 429, 500, 503) if passing(status)
    ] == [*(408, 429, 500, 503)]
