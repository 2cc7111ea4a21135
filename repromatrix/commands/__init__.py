"""The commands behind the invoke tasks: call the flow, print, write `--json`, give the exit code."""
