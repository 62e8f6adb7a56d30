"""What comes back."""

from vllm.made import Record


class Logprob(Record):
    pass


class CompletionOutput(Record):
    pass


class RequestOutput(Record):
    pass
