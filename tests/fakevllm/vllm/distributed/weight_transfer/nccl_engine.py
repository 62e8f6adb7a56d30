"""What TRL imports for its server mode, which the stand-in does not have."""


class NCCLTrainerSendWeightsArgs:
    pass


class NCCLWeightTransferEngine:
    pass
