"""One endpoint: what a rejection teaches about the server, and what it does not."""

import traceback

import pytest

from acpo.annotate.annotators import Status
from acpo.annotate.endpoint import Endpoint, RequestFailure
from acpo.annotate.models import SCHEMA
from acpo.errors import ACPOError
from annotate.server import Fault, annotating


def test_a_message_rejected_in_any_form_says_nothing_about_the_options():
    def behave(message, number):
        return Fault("422") if message == "too long" else "fine"

    with annotating(behave) as server:
        endpoint = Endpoint(server.url, model="tiny", form=SCHEMA, retries=0)
        for _ in range(2):
            with pytest.raises(RequestFailure) as caught:
                endpoint.complete("system", "too long")
            assert caught.value.status is Status.REJECTED
            assert endpoint.complete("system", "short").text == "fine"
            assert {"response_format", "temperature"} <= server.payloads[-1].keys()


def test_an_option_without_which_the_server_replies_is_not_sent_again():
    with annotating(lambda message, number: "fine") as server:
        server.rejects = {"response_format"}
        endpoint = Endpoint(server.url, model="tiny", form=SCHEMA, retries=0)
        assert [endpoint.complete("system", "m").text for _ in range(2)] == ["fine"] * 2
        sent = ["response_format" in payload for payload in server.payloads]
        assert sent == [True, False, False]
        assert all("temperature" in payload for payload in server.payloads)


def test_white_space_around_a_key_is_not_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", " sk-secret\r\n")
    with annotating(lambda message, number: "fine") as server:
        Endpoint(server.url, model="tiny", form=SCHEMA, retries=0).complete("system", "m")
        assert server.authorizations == ["Bearer sk-secret"]


@pytest.mark.parametrize("key", ["sk-secret\nX: 1", "sk-secret\t1", "sk-sécret", "“sk-secret”"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(monkeypatch, key):
    monkeypatch.setenv("OTHER_KEY", key)
    with pytest.raises(ACPOError, match=r"\$OTHER_KEY holds") as caught:
        Endpoint("http://x/v1", model="tiny", form=SCHEMA, api_key_env="OTHER_KEY")
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("status", ["200", "400", "401", "429", "500"])
def test_a_key_that_the_server_repeats_is_not_told(monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with annotating(lambda message, number: Fault(f"echo {status}")) as server:
        endpoint = Endpoint(server.url, model="tiny", form=SCHEMA, retries=0)
        with pytest.raises((RequestFailure, ACPOError), match=r"Bearer \[the key\]") as caught:
            endpoint.complete("system", "m")
    assert "sk" not in "".join(traceback.format_exception(caught.value, limit=0))


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid"])
def test_where_nobody_listens_no_other_attempt_is_made(host):
    endpoint = Endpoint(f"http://{host}/v1", model="tiny", form=SCHEMA, retries=5, first_pause=60)
    with pytest.raises(ACPOError, match=f"{host}/v1: no server there .*start it, or correct"):
        endpoint.complete("system", "m")


def test_a_server_that_goes_away_is_waited_for():
    with annotating(lambda message, number: Fault("500")) as server:
        options = {"retries": 1, "first_pause": 0.01}
        endpoint = Endpoint(server.url, model="tiny", form=SCHEMA, **options)
        with pytest.raises(RequestFailure):
            endpoint.complete("system", "m")
        server.shutdown()
        server.server_close()
        with pytest.raises(RequestFailure) as caught:
            endpoint.complete("system", "m")
        assert caught.value.status is Status.CONNECTION and caught.value.passing


def test_an_address_that_has_moved_is_told():
    with annotating(lambda message, number: Fault("307")) as server:
        endpoint = Endpoint(server.url, model="tiny", form=SCHEMA, retries=0)
        with pytest.raises(ACPOError, match=r"answers status 307: .*check the URL"):
            endpoint.complete("system", "m")


def test_a_count_of_tokens_beyond_all_bounds_is_malformed():
    with annotating(lambda message, number: "fine") as server:
        server.tokens_read = 10**400
        endpoint = Endpoint(server.url, model="tiny", form=SCHEMA, retries=0)
        with pytest.raises(RequestFailure) as caught:
            endpoint.complete("system", "short")
        assert caught.value.status is Status.MALFORMED
