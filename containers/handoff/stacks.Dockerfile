# ---- the programs that read the stacks of a crash or a hang: no part of the environment ----
# Without them, as where an index has none:  --build-arg STACKS=no
FROM ${BASE} AS stacks
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG STACKS=yes
RUN --mount=type=bind,source=stacks.txt,target=/mnt/stacks.txt \
    mkdir /opt/stacks \
    && if [ "$STACKS" = yes ]; then \
        python3 -m venv /tmp/pip \
        && /tmp/pip/bin/pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: \
           --target /opt/stacks --requirement /mnt/stacks.txt \
        && rm -r /tmp/pip; \
    fi

