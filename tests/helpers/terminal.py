"""Run a program that needs a terminal."""

import os
import pty
import subprocess
import time


def in_a_terminal(command, answers, folder):
    """Run a command in a new terminal, give each answer at its prompt, and return the screen."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, start_new_session=True
    ) as process:
        os.close(slave)
        screen, until = "", time.monotonic() + 60
        while time.monotonic() < until:
            try:
                screen += os.read(master, 4096).decode()
            except OSError:  # the other end is closed
                break
            if answers and answers[0][0] in screen:
                os.write(master, f"{answers.pop(0)[1]}\n".encode())
        process.kill()
    os.close(master)
    return screen
