"""Settings: defaults, then the environment. Read once, at start; a bad value stops the start and is named."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from lcm.model.errors import Fault, Invalid

LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]


class Settings(BaseSettings):
    """Every setting of a process."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    data_dir: Path = Field(default=Path(".data"), validation_alias="LCM_DATA_DIR")
    log_level: LogLevel = Field(default="INFO", validation_alias="LOG_LEVEL")
    total_cpu_cores: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    total_memory_gb: int = Field(default=128, gt=0)


def load() -> Settings:
    """Read the settings, or raise Invalid with every bad one."""
    try:
        return Settings()
    except ValidationError as error:
        faults = (
            Fault(str(one["loc"][0]).upper(), f"{one['input']!r}: {one['msg']}", "correct or unset it")
            for one in error.errors()
        )
        raise Invalid(*faults) from error
