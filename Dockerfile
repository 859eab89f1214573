# det in a container: `docker build --tag det .`, then, beside your model_def.py and const.yaml:
#
#     docker run --rm --volume "$PWD:/code" --volume det-home:/home/det/.det det run const.yaml
#
# PLUGINS says which frameworks it brings: docker build --build-arg PLUGINS="det-torch det-lightning" --tag det .
FROM python:3.11-slim AS development
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m pip install nox pre-commit

FROM python:3.11-slim
ARG PLUGINS="det-torch"
# PyTorch's own index has it without CUDA, a tenth of the size; for GPUs say --build-arg INDEX=https://pypi.org/simple
ARG INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY packages /usr/src/det/packages
RUN cd /usr/src/det \
    && python -m pip install --extra-index-url "$INDEX" ./packages/det-core ./packages/det-node ./packages/det-driver $(printf './packages/%s ' $PLUGINS)
RUN useradd --create-home det && mkdir --mode=0700 /home/det/.det && chown det: /home/det/.det
USER det
WORKDIR /code
ENTRYPOINT ["det"]
