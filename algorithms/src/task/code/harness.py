# Loads main.py in a process of its own and asks it one thing. See harness.rs.
import os
import sys


def answer(asked, told):
    """The second process: knows nothing until the program has been loaded."""
    read, write, leave = os.read, os.write, os._exit
    run, value_of, text_of, build = exec, eval, repr, compile
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 0)
    os.dup2(silent, 1)
    with open("main.py", "rb") as file:
        program = file.read()
    # A module as any other, but not the main one: it is loaded, and not begun.
    module = type(sys)("answer")
    sys.modules["answer"] = module
    scope = module.__dict__
    run(build(program, "main.py", "exec"), scope)
    write(told, b"+")

    def read_exactly(count):
        taken = b""
        while len(taken) < count:
            more = read(asked, count - len(taken))
            if not more:
                leave(1)
            taken += more
        return taken

    kind = read_exactly(4).decode()
    length = int(read_exactly(12))
    question = build(read_exactly(length), "test", kind)
    said = b""
    if kind == "eval":
        said = text_of(value_of(question, scope)).encode("utf-8", "backslashreplace")
    else:
        run(question, scope)
    write(told, b"+")
    # The number is sent when the answer is known, so what answers wrongly never sees it.
    said = read_exactly(32) + b"%12d" % len(said) + said
    while said:
        said = said[write(told, said):]
    leave(0)


def main():
    asked_end, ask = os.pipe()
    hear, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ask)
        os.close(hear)
        try:
            answer(asked_end, told)
        except BaseException as error:
            sys.stderr.write("%s: %.300s\n" % (type(error).__name__, error))
            sys.stderr.flush()
        os._exit(1)
    os.close(asked_end)
    os.close(told)
    given = b""
    while more := os.read(0, 1 << 16):
        given += more
    token, kind, question = given.split(b"\n", 2)

    def send(data):
        while data:
            data = data[os.write(ask, data):]

    if os.read(hear, 1) != b"+":
        os._exit(1)
    send(kind + b"%12d" % len(question) + question)
    if os.read(hear, 1) != b"+":
        os._exit(1)
    number = os.urandom(16).hex().encode()
    send(number)

    def hear_exactly(count):
        heard = b""
        while len(heard) < count:
            more = os.read(hear, count - len(heard))
            if not more:
                os._exit(1)
            heard += more
        return heard

    if hear_exactly(32) != number:
        os._exit(1)
    said = hear_exactly(int(hear_exactly(12)))
    sys.stdout.buffer.write(token + b" " + said + b"\n")
    sys.stdout.buffer.flush()
    # Whatever of the program still lives is ended with the sandbox.
    os._exit(0)


main()
