"""Ids in their order, page by page, while they come and go."""

from hypothesis import given
from hypothesis import strategies as st

from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey, Tenant
from edgehub.sync.index import KeyIndex

KEYS = st.builds(
    RouteKey,
    st.sampled_from([DEFAULT_TENANT, Tenant("acme", "one")]),
    st.sampled_from(["a", "B", "a1", "a10", "a2", "é", "z"]),
)
STEPS = st.lists(st.tuples(st.booleans(), KEYS), min_size=15, max_size=40)


@given(STEPS, st.integers(1, 4))
def test_pages_give_each_id_of_a_tenant_once_in_order(steps, limit):
    """Whatever came, came again, went, and was never there."""
    index, model = KeyIndex(), set()
    for comes, key in steps:
        (index.add if comes else index.discard)(key)
        (model.add if comes else model.discard)(key)
    for tenant in (DEFAULT_TENANT, Tenant("acme", "one"), Tenant("no", "body")):
        seen, after, more = [], None, True
        while more:
            page, more = index.page(tenant, after, limit)
            assert len(page) <= limit
            seen += page
            after = page[-1] if page else after
        assert seen == sorted(key.id for key in model if key.tenant == tenant)
