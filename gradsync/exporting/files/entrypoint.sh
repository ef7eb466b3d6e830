#!/usr/bin/env bash
# PrairieLearn runs this for each submission, as the image's entrypoint.
exec bash /gradsync/grade.sh prairielearn /grade/student /grade/results/results.json
