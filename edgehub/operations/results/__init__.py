"""The results of operations, as the control socket, the HTTP API and `--json` have them.

The OpenAPI document is made of these types: the section `Attributes` describes members that their
names do not explain. Results may have further members; what stands here stays.
"""
