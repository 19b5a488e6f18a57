"""What Google's XML API for objects has and S3 has not, before moto's S3: gcp-storage-emulator 2026.7 and
fake-gcs-server 1.54 lack XML's listing or its PUT, which object_store asks for. Usage: gs.py PORT, by moto's Python."""

import sys
import time

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
s3 = DomainDispatcherApplication(create_backend_app)


def google(environ, start_response):
    # A token has no place for a service's name, which moto looks for.
    environ["HTTP_AUTHORIZATION"] = SIGNED
    # https://cloud.google.com/storage/docs/xml-api/reference-headers#xgoogifgenerationmatch: 0 is an object that is not there.
    if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":
        environ["HTTP_IF_NONE_MATCH"] = "*"

    def answer(status, headers, *rest):
        return start_response(status, [*headers, ("x-goog-generation", str(time.time_ns() // 1000))], *rest)

    return s3(environ, answer)


class Quiet(WSGIRequestHandler):
    def log_request(self, *_):
        pass


run_simple("127.0.0.1", int(sys.argv[1]), google, threaded=True, request_handler=Quiet)
