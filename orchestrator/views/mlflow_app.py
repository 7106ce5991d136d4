"""MLflow's server without its assistant, which runs commands on this machine and lies over half of
a sweep's page.

`mlflow server --app-name specfrontier` runs it; MLflow has no setting for this.
"""

from __future__ import annotations

from pathlib import Path

from mlflow.server import app as pages
from mlflow.server.fastapi_app import app
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

_API = "/mlflow/assistant/"  # in the paths of its requests
# Its panel opens by itself on the first visit, and its button is on every page.
_HIDDEN = """<style>[data-assistant-ui] { display: none !important }</style><script>
for (const [key, value] of [["fab.autoOpenedOnFirstLoad_v1", "true"], ["panelOpen_v1", "false"]])
  localStorage.setItem(`mlflow.assistant.${key}`, value);
</script>"""


class WithoutAssistant:
    """Refuses the assistant's requests, and adds to MLflow's page what keeps its panel closed."""

    def __init__(self, server: ASGIApp) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._server
        if scope["type"] == "http" and _API in scope["path"]:
            answer = Response("the assistant is off", 403)
        elif scope["type"] == "http" and scope["path"] == "/":
            text = Path(str(pages.static_folder), "index.html").read_text("utf-8")
            answer = HTMLResponse(
                text.replace("<head>", f"<head>{_HIDDEN}", 1), headers={"Cache-Control": "no-cache"}
            )
        await answer(scope, receive, send)


# The innermost: MLflow's own first refuse foreign hosts and add their headers.
app.user_middleware.append(Middleware(WithoutAssistant))
