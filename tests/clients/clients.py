"""The official `openai` package and a raw PCM client, as a voice agent has it, against a running server as they are.

Usage: clients.py BASE_URL    (http://127.0.0.1:8080); needs `pip install openai`. Exits 0 when all checks hold.
"""

import http.client
import io
import json
import sys
import tempfile
import wave
from pathlib import Path
from urllib.parse import urlparse

import openai

BASE = sys.argv[1]
TEXT = "Good morning, and welcome to the show."
client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="not-needed", max_retries=0)
checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"failed: {what}")


def speech(**fields):
    fields = {"model": "rumik-demo", "voice": "Ira", "input": TEXT, "extra_body": {"seed": 5}} | fields
    return client.audio.speech.create(**fields)


def openai_whole():
    """`create`, as the package's own examples have it."""
    pcm = speech(response_format="pcm").content
    check(len(pcm) > 24_000 and len(pcm) % 3840 == 0, "pcm is whole frames")
    for name in ["mp3", "opus", "flac", "wav", "pcm"]:
        check(speech(response_format=name).content[:4] in (pcm[:4], b"RIFF", b"fLaC", b"OggS") or name == "mp3", name)
    file = Path(tempfile.mkdtemp()) / "speech.wav"
    speech(response_format="wav", extra_body={"seed": 5, "stream": False}).write_to_file(file)
    with wave.open(str(file)) as wav:
        check((wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) == (24_000, 1, 2), "the file's format")
        check(wav.readframes(wav.getnframes()) == pcm, "the file's samples")
    return pcm


def openai_streaming(pcm):
    """`with_streaming_response`, in audio and in events."""
    with client.audio.speech.with_streaming_response.create(
        model="rumik-demo", voice="Ira", input=TEXT, response_format="pcm", extra_body={"seed": 5}
    ) as response:
        check(response.headers["x-rumik-seed"] == "5", "the seed is told")
        chunks = list(response.iter_bytes())
    check(len(chunks) > 3 and b"".join(chunks) == pcm, "streamed bytes are those of the whole")
    with client.audio.speech.with_streaming_response.create(
        model="rumik-demo", voice="Ira", input=TEXT, response_format="pcm", stream_format="sse", extra_body={"seed": 5}
    ) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    import base64

    deltas = [base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta"]
    check(b"".join(deltas) == pcm, "events carry the same bytes")
    check(events[-1]["type"] == "speech.audio.done" and events[-1]["usage"]["output_tokens"] > 0, "the last event")


def openai_errors():
    """The package's own exceptions, with the field at fault."""
    for fields, param in [({"voice": "alloy"}, "voice"), ({"input": "।।"}, "input"), ({"speed": 2.0}, "speed")]:
        try:
            speech(**fields)
            check(False, f"{param} was accepted")
        except openai.BadRequestError as error:
            check(error.param == param and error.body["message"], f"{param}: {error}")
    check([model.id for model in client.models.list()] == ["rumik-demo"], "the list of models")
    check(client.models.retrieve("rumik-demo").object == "model", "one model")
    try:
        client.models.retrieve("other")
        check(False, "a model that is not there")
    except openai.NotFoundError:
        check(True, "404")


def raw_pcm(pcm):
    """A voice agent: raw samples in fixed blocks as they come, one connection for many sentences."""
    address = urlparse(BASE)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    for _ in range(3):
        body = {"input": TEXT, "voice": "Ira", "response_format": "pcm", "seed": 5}
        connection.request("POST", "/v1/audio/speech", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        check(response.status == 200 and response.getheader("transfer-encoding") == "chunked", "a stream")
        heard = io.BytesIO()
        while block := response.read(960):  # 20 ms
            check(len(block) % 2 == 0, "whole samples")
            heard.write(block)
        check(heard.getvalue() == pcm, "the same samples")
    connection.close()


pcm = openai_whole()
openai_streaming(pcm)
openai_errors()
raw_pcm(pcm)
print(f"{checks} passed, 0 failed")
