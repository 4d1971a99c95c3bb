# The sequencer job, and every other command of totalorder: docker build -f docker/job.Dockerfile -t totalorder .
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/totalorder
COPY constraints.txt pyproject.toml README.md ./
# The packages first: they change less often than the code, and make up most of the image. delta-spark by itself, with what it
# needs beside pyspark, which is newer than it allows (docs/adr/0026).
RUN pip install --no-cache-dir -c constraints.txt setuptools \
    && python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print('\n'.join(w for w in p['dependencies'] + p['optional-dependencies']['spark'] if 'delta-spark' not in w))" > requirements.txt \
    && pip install --no-cache-dir --no-build-isolation -c constraints.txt -r requirements.txt \
    && pip install --no-cache-dir --no-deps -c constraints.txt delta-spark importlib_metadata zipp

# All folders that pyproject.toml lists.
COPY totalorder ./totalorder
COPY sequencer ./sequencer
COPY subscriber ./subscriber
COPY streaming ./streaming
COPY sinks ./sinks
COPY bench ./bench
COPY conf ./conf
RUN pip install --no-cache-dir --no-build-isolation --no-deps .

# The jars are fetched when the image is made, and checked against the lock; the job needs no network for them.
ENV TOTALORDER_CACHE=/opt/totalorder/cache
RUN python -m totalorder.jars spark fastfs

RUN useradd --create-home --uid 1000 totalorder \
    && mkdir /checkpoints \
    && chown totalorder /checkpoints cache/jars cache/jars/*
USER totalorder
WORKDIR /home/totalorder
VOLUME /checkpoints

# tini hands SIGTERM to the job, which ends its batch and stops.
ENTRYPOINT ["tini", "--", "totalorder"]
CMD ["sequence"]
