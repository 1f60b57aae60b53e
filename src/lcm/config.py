"""Settings: defaults, then the environment. Read once, at start; a bad value stops the start and is named."""

from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from lcm.model.errors import Fault, Invalid


class Settings(BaseSettings):
    """Every setting of a process."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    data_dir: Path = Field(default=Path(".data"), validation_alias="LCM_DATA_DIR")
    log_level: str = Field(default="INFO", validation_alias="LOG_LEVEL", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    total_cpu_cores: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    total_memory_gb: int = Field(default=128, gt=0)


def load() -> Settings:
    """Read the settings, or raise Invalid with every bad one."""
    try:
        return Settings()
    except ValidationError as error:
        faults = (
            Fault(str(one["loc"][0]).upper(), f"{one['input']!r}: {one['msg'].lower()}", "correct or unset it")
            for one in error.errors()
        )
        raise Invalid(*faults) from error
