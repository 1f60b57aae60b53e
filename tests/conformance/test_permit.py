"""Whoever may not act any more changes nothing outside, through any provider; looking goes on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from clouds import HERE, KEYS, SESSION, CloudWorld, MotoWorld, SimWorld, launch, unique
from labsteps import LAB, node, started
from labworlds import World, in_process, on
from lcm.model.errors import Deposed
from lcm.model.secret import Secret
from lcm.providers.compute import Compute
from lcm.providers.ec2 import Ec2
from lcm.providers.ec2_clients import AwsClients
from lcm.providers.labhost import LabHost
from lcm.providers.permit import permit, under
from lcm.sim.cml.licence import PRODUCTS
from lcm.system import SystemClock
from moto_server import MotoServer
