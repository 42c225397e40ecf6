"""The cryptography of LoRaWAN 1.0 and 1.1 on AES-128 (LoRaWAN 1.1 sections 4.3, 4.4 and 6).

Pure functions on bytes; the only module that needs the package `cryptography`. Keys are 16 bytes,
as on a device's label. Counters are the full 32 bits, always.
"""

from __future__ import annotations

import hmac
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.cmac import CMAC

from edgehub.lora.frames import MIC_BYTES, Direction, FrameError, JoinAcceptFields

if TYPE_CHECKING:
    from edgehub.lora.frames import DataFrame

KEY_BYTES: Final = 16
BLOCK: Final = 16
_BLOCK: Final = struct.Struct("<B4sBIIx")
JOIN_REQUEST_TYPE: Final = 0xFF
"""JoinReqType of an answer to a join request; to a rejoin request it is that one's type."""

UPLINK_F_OPTS: Final = 1
"""Byte 4 of the block for FOpts: uplinks, and downlinks counted by the network's counter."""
APP_DOWNLINK_F_OPTS: Final = 2
"""The same for downlinks counted by the application's counter."""


def cmac(key: bytes, message: bytes) -> bytes:
    """Return the AES-CMAC of a message (RFC 4493), 16 bytes."""
    mac = CMAC(AES(key))
    mac.update(message)
    return mac.finalize()


def encrypt(key: bytes, blocks: bytes) -> bytes:
    """Encrypt whole blocks with AES, each by itself."""
    encryptor = Cipher(AES(key), ECB()).encryptor()  # noqa: S305 - LoRaWAN makes its stream of it
    return encryptor.update(blocks) + encryptor.finalize()


def decrypt(key: bytes, blocks: bytes) -> bytes:
    """Decrypt whole blocks with AES, each by itself."""
    decryptor = Cipher(AES(key), ECB()).decryptor()  # noqa: S305 - as LoRaWAN wants it
    return decryptor.update(blocks) + decryptor.finalize()


def is_mic(expected: bytes, mic: bytes) -> bool:
    """Return whether a MIC is the expected one; the time it takes does not depend on the answer."""
    return hmac.compare_digest(expected, mic)


# Data frames.


def data_mic(
    key: bytes,
    message: bytes,
    direction: Direction,
    dev_addr: int,
    f_cnt: int,
    *,
    conf_f_cnt: int = 0,
) -> bytes:
    """Return the MIC of a data frame of 1.0 in either direction, or of a downlink of 1.1.

    Args:
        key: NwkSKey; SNwkSIntKey for a downlink of 1.1.
        message: What it covers; see `DataFrame.signed_part`.
        direction: Its way.
        dev_addr: Device address.
        f_cnt: Frame counter.
        conf_f_cnt: Of a downlink of 1.1 with ACK: low 16 bits of the acknowledged counter.
    """
    block = _block(0x49, conf_f_cnt.to_bytes(2, "little") + bytes(2), direction, dev_addr, f_cnt)
    return cmac(key, block + bytes([len(message)]) + message)[:MIC_BYTES]


def uplink_mic_1_1(
    f_nwk_s_int_key: bytes,
    s_nwk_s_int_key: bytes,
    message: bytes,
    dev_addr: int,
    f_cnt: int,
    *,
    tx_dr: int,
    tx_ch: int,
    conf_f_cnt: int = 0,
) -> bytes:
    """Return the MIC of an uplink of 1.1: one half by each key.

    Args:
        f_nwk_s_int_key: FNwkSIntKey.
        s_nwk_s_int_key: SNwkSIntKey.
        message: What it covers.
        dev_addr: Device address.
        f_cnt: Frame counter.
        tx_dr: Data rate of the uplink.
        tx_ch: Index of its channel.
        conf_f_cnt: Of an uplink with ACK: low 16 bits of the acknowledged counter.
    """
    extra = conf_f_cnt.to_bytes(2, "little") + bytes([tx_dr, tx_ch])
    block = _block(0x49, extra, Direction.UP, dev_addr, f_cnt) + bytes([len(message)])
    network = data_mic(f_nwk_s_int_key, message, Direction.UP, dev_addr, f_cnt)
    return cmac(s_nwk_s_int_key, block + message)[:2] + network[:2]


def crypt_payload(
    key: bytes, payload: bytes, direction: Direction, dev_addr: int, f_cnt: int
) -> bytes:
    """Encrypt or decrypt a FRMPayload.

    Args:
        key: AppSKey; for FPort 0 NwkSKey, in 1.1 NwkSEncKey.
        payload: Plain or encrypted.
        direction: Its way.
        dev_addr: Device address.
        f_cnt: Frame counter.
    """
    if not payload:
        return b""
    block = _block(0x01, bytes(4), direction, dev_addr, f_cnt)
    count = -(-len(payload) // BLOCK)
    stream = encrypt(key, b"".join(block + bytes([i]) for i in range(1, count + 1)))
    return _xor(payload, stream)


def crypt_f_opts(
    key: bytes, f_opts: bytes, direction: Direction, dev_addr: int, f_cnt: int, *, kind: int
) -> bytes:
    """Encrypt or decrypt FOpts of 1.1.

    Args:
        key: NwkSEncKey.
        f_opts: Plain or encrypted.
        direction: Its way.
        dev_addr: Device address.
        f_cnt: Frame counter.
        kind: `UPLINK_F_OPTS` or `APP_DOWNLINK_F_OPTS`.
    """
    block = _block(0x01, bytes([0, 0, 0, kind]), direction, dev_addr, f_cnt)
    return _xor(f_opts, encrypt(key, block + b"\x01"))


def f_opts_kind(frame: DataFrame) -> int:
    """Return which counter the FOpts of a frame of 1.1 go with."""
    app_downlink = frame.direction is Direction.DOWN and bool(frame.f_port)
    return APP_DOWNLINK_F_OPTS if app_downlink else UPLINK_F_OPTS


# Joins.


def request_mic(key: bytes, message: bytes) -> bytes:
    """Return the MIC of a join request or rejoin request.

    Args:
        key: AppKey or NwkKey; of a rejoin request SNwkSIntKey, of type 1 JSIntKey.
        message: What it covers.
    """
    return cmac(key, message)[:MIC_BYTES]


def accept_mic(key: bytes, mhdr: int, fields: bytes, *, prefix: bytes = b"") -> bytes:
    """Return the MIC of a join accept.

    Args:
        key: AppKey; JSIntKey where OptNeg is set.
        mhdr: First byte of the frame.
        fields: See `JoinAcceptFields.build`.
        prefix: Where OptNeg is set, what `opt_neg_prefix` returns.
    """
    return cmac(key, prefix + bytes([mhdr]) + fields)[:MIC_BYTES]


def opt_neg_prefix(join_eui: int, dev_nonce: int, *, kind: int = JOIN_REQUEST_TYPE) -> bytes:
    """Return what precedes a join accept of 1.1 in its MIC."""
    return bytes([kind]) + join_eui.to_bytes(8, "little") + dev_nonce.to_bytes(2, "little")


def seal_accept(key: bytes, fields: bytes, mic: bytes) -> bytes:
    """Encrypt a join accept: devices decrypt it by encryption, so this decrypts.

    Args:
        key: AppKey or NwkKey; JSEncKey in answer to a rejoin request.
        fields: See `JoinAcceptFields.build`.
        mic: Its MIC.
    """
    return decrypt(key, fields + mic)


def open_accept(key: bytes, encrypted: bytes) -> tuple[JoinAcceptFields, bytes]:
    """Decrypt a join accept, as a device does; return fields and MIC.

    Raises:
        FrameError: It has not the length of one.
    """
    if not encrypted or len(encrypted) % BLOCK:
        raise FrameError("a join accept is one block or two")
    plain = encrypt(key, encrypted)
    return JoinAcceptFields.parse(plain[:-MIC_BYTES]), plain[-MIC_BYTES:]


class JoinKeys(NamedTuple):
    """Root keys of a device that joins, and the request that is answered; in 1.0 both are one."""

    app_key: bytes
    nwk_key: bytes
    join_eui: int
    dev_eui: int
    dev_nonce: int


def join_accept_mic(keys: JoinKeys, mhdr: int, fields: JoinAcceptFields) -> bytes:
    """Return the MIC of an answer to a join request, as its OptNeg wants it."""
    if not fields.opt_neg:
        return accept_mic(keys.nwk_key, mhdr, fields.build())
    prefix = opt_neg_prefix(keys.join_eui, keys.dev_nonce)
    return accept_mic(js_int_key(keys.nwk_key, keys.dev_eui), mhdr, fields.build(), prefix=prefix)


def js_enc_key(nwk_key: bytes, dev_eui: int) -> bytes:
    """Derive the key that encrypts answers to rejoin requests."""
    return derive(nwk_key, 0x05, dev_eui.to_bytes(8, "little"))


def js_int_key(nwk_key: bytes, dev_eui: int) -> bytes:
    """Derive the key of the MIC of rejoin requests of type 1 and of join accepts of 1.1."""
    return derive(nwk_key, 0x06, dev_eui.to_bytes(8, "little"))


def derive(key: bytes, kind: int, fields: bytes) -> bytes:
    """Derive a key from one that its device has, for the use that `kind` stands for."""
    return encrypt(key, (bytes([kind]) + fields).ljust(BLOCK, b"\0"))


def _block(first: int, extra: bytes, direction: Direction, dev_addr: int, f_cnt: int) -> bytes:
    # B0, B1 and A, without the last byte.
    return _BLOCK.pack(first, extra, direction, dev_addr, f_cnt)


def _xor(text: bytes, stream: bytes) -> bytes:
    size = len(text)
    return (int.from_bytes(text) ^ int.from_bytes(stream[:size])).to_bytes(size)
