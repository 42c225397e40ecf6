"""Subscription options of MQTT 5, with the subscription identifiers in the same number.

The lowest byte has the layout of SUBSCRIBE; its lowest two bits are the quality of service, which
is all that MQTT 3.1.1 has. The identifiers stand above it, 28 bits each, so that nothing is built
where there are none. Pure. Source: MQTT 5, section 3.8.3.1.
"""

from __future__ import annotations

from typing import Final

from edgehub.mqtt.properties import Property, write_block

QOS: Final = 0x03
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08
OPTIONS_MAX: Final = 0xFF
RESERVED_OPTIONS: Final = 0xC0

IDENTIFIER_SHIFT: Final = 8
_IDENTIFIER_BITS: Final = 28
_IDENTIFIER: Final = (1 << _IDENTIFIER_BITS) - 1

_RETAIN_HANDLING_SHIFT: Final = 4
_RETAIN_HANDLING: Final = 3

REPLAY_IF_NEW: Final = 1
REPLAY_NEVER: Final = 2
REPLAY_IF_NEW_BITS: Final = REPLAY_IF_NEW << _RETAIN_HANDLING_SHIFT


def retain_handling(options: int) -> int:
    """Return the retain handling; 0 = send retained messages at each SUBSCRIBE, 3 = invalid."""
    return options >> _RETAIN_HANDLING_SHIFT & _RETAIN_HANDLING


def merged_options(one: int, other: int) -> int:
    """Return the options for a message that two subscriptions take: the best, all identifiers."""
    identifiers = one >> IDENTIFIER_SHIFT
    places = -(-identifiers.bit_length() // _IDENTIFIER_BITS)
    identifiers |= other >> IDENTIFIER_SHIFT << places * _IDENTIFIER_BITS
    options = max(one & QOS, other & QOS) | (one | other) & RETAIN_AS_PUBLISHED
    return options | identifiers << IDENTIFIER_SHIFT


def write_identifiers(options: int) -> bytes:
    """Write the subscription identifiers among options, as part of a property block."""
    values = []
    identifiers = options >> IDENTIFIER_SHIFT
    while identifiers:
        values.append((Property.SUBSCRIPTION_IDENTIFIER, identifiers & _IDENTIFIER))
        identifiers >>= _IDENTIFIER_BITS
    return write_block(values)
