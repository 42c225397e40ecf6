"""`[workload]`: the workload API for modules made with the SDKs of Azure IoT Edge.

Owns that section of the model; calls nothing of the hub.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from edgehub.settings.values import OptionalFile, OptionalPath, Section


class WorkloadSettings(Section):
    """`[workload]`: sockets on which modules ask for signatures and trusted certificates."""

    folder: OptionalPath = Field(
        default=None,
        description="Where its sockets go; absent = no workload API.",
        examples=["/run/edgehub/workload"],
    )
    trust_bundle_file: OptionalFile = Field(
        default=None,
        description="Certificates in PEM by which modules trust the certificate of [mqtt].",
        examples=["/etc/edgehub/ca.pem"],
    )

    @model_validator(mode="after")
    def _is_whole(self) -> WorkloadSettings:
        if (self.folder is None) != (self.trust_bundle_file is None):
            raise ValueError("folder and trust_bundle_file belong together")
        return self
