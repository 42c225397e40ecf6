"""Arguments of operations, declared in few words."""

from __future__ import annotations

from functools import partial

from edgehub.operations.operation import Argument, ArgumentKind

text = partial(Argument, kind=ArgumentKind.TEXT)
whole = partial(Argument, kind=ArgumentKind.WHOLE)
seconds = partial(Argument, kind=ArgumentKind.SECONDS)
tenant = partial(Argument, kind=ArgumentKind.TENANT)
flag = partial(Argument, kind=ArgumentKind.FLAG, default=False)
texts = partial(Argument, kind=ArgumentKind.TEXTS)
wholes = partial(Argument, kind=ArgumentKind.WHOLES)
document = partial(Argument, kind=ArgumentKind.JSON)
