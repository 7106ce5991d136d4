"""An S3-compatible object store of the tests' own, on the loopback: moto's server, which checks
keys and policies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.fakes.ports import HOST, claim_port
from tests.fakes.waiting import HANG_S

REGION = "us-east-1"
_NEVER = float("inf")


class ObjectStore:
    """A server that can be stopped and started again, with what it holds."""

    def __init__(self) -> None:
        self.port = claim_port()
        self.start()
        # earlier servers of this process left theirs
        reset = Request(f"{self.endpoint}/moto-api/reset", method="POST")
        urlopen(reset, timeout=HANG_S).close()
        self.key, self.secret = self.add_user("everything", "s3:*")

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server: Any = ThreadedMotoServer(ip_address=HOST, port=self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
        self._server._server.server_close()  # else connections to its port would wait for an answer

    def client(self, service: str = "s3", key: str = "a", secret: str = "b") -> Any:
        import boto3

        keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return boto3.client(service, endpoint_url=self.endpoint, region_name=REGION, **keys)

    def add_user(self, name: str, *actions: str) -> tuple[str, str]:
        """The key and the secret of a new user who may do these actions."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=document)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    def bucket(self, name: str) -> str:
        """The URI of a new bucket, with keys for everything."""
        self.client().create_bucket(Bucket=name)
        return self.uri(name)

    def uri(self, place: str, key: str | None = None, secret: str | None = None) -> str:
        account = f"{quote(key or self.key, safe='')}:{quote(secret or self.secret, safe='')}"
        return f"s3://{account}@{place}?region={REGION}&scheme=http&endpoint_override={HOST}:{self.port}"

    @contextmanager
    def checking_keys(self) -> Iterator[None]:
        """Requests in the block need a user's key, and a policy that allows them."""
        from moto import settings

        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        try:
            yield
        finally:
            settings.INITIAL_NO_AUTH_ACTION_COUNT = _NEVER


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A running server; skips the test where moto is not installed."""
    pytest.importorskip("moto.server", reason="no moto: pip install 'moto[s3]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        store = ObjectStore()
        try:
            yield store
        finally:
            store.stop()
