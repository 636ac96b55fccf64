"""Imports what a small service imports, then idles. usage: idle.py [seconds]"""

import argparse
import http.server
import json
import logging
import sys
import time

logging.getLogger("idle").debug("%s", json.dumps({"server": http.server.HTTPServer.__name__}))
argparse.ArgumentParser().parse_known_args([])
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
