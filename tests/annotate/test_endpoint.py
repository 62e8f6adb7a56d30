"""One endpoint: what a rejection teaches about the server, and what it does not."""

import pytest

from acpo.annotate.annotators import Status
from acpo.annotate.endpoint import Endpoint, RequestFailure
from acpo.annotate.models import SCHEMA
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
