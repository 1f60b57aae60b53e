"""What workers of one image have told is known of all of them, whoever comes, changes and goes."""

from random import Random

from msgspec.structs import replace

from harness import given
from lcm.model.kinds.worker import LabWorker
from lcm.placement.workers import KnownWorkers, find_image_facts, image_of

IMAGES = ({"ami_id": "ami-1"}, {"ami_id": "ami-2"})
LISTS = (None, ("iosv",), ("iosv", "alpine"), ())


def worker(number: int, chance: Random) -> LabWorker:
    made = given.worker(name=f"w{number}", uid=f"u{number}", aws=chance.choice(IMAGES))
    cml = replace(made.status.cml, version=chance.choice(("", "2.8.1", "2.9.0")), node_definitions=chance.choice(LISTS))
    return replace(made, status=replace(made.status, cml=cml))


def test_what_an_image_has_is_the_same_as_if_all_were_asked() -> None:
    chance, known, there = Random(3), KnownWorkers(), dict[str, LabWorker]()
    for _ in range(2_000):
        number = chance.randrange(12)
        if chance.random() < 0.3:
            known.remove(f"u{number}")
            there.pop(f"u{number}", None)
        else:
            there[f"u{number}"] = made = worker(number, chance)
            known.put(made)
        for image in {image_of(one.spec) for one in there.values()}:
            alike = [one for one in there.values() if image_of(one.spec) == image]
            assert known.image_facts(image) == find_image_facts(alike)
        assert dict(known.items()) == there
        assert set(known.uids()) == {one.metadata.uid for one in known} == set(there)
