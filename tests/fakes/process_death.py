"""What stands for the death of a process."""


class ProcessDied(BaseException):
    """Raised where SIGKILL would end a process: nothing catches it but the test."""
