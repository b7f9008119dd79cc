"""As much of Flux's C bindings as the helper names."""


class lib:
    FLUX_POLLIN = 1
