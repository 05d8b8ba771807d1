"""What session.proto calls required. A message without it is none, and is never taken for something else."""

REQUIRED = {
    "Down": "kind", "DownFrame": "head", "Head": "from to tenure", "Hello": "versions gateway incarnation session lease_us",
    "Resume": "worker tenure", "Attempt": "tenant run attempt", "Submit": "attempt worker number prompt params", "Params": "sampling n",
    "Sampling": "temperature top_p min_p presence_penalty frequency_penalty repetition_penalty", "LogitBias": "bias", "Deadline": "cause",
    "Cancel": "attempt cause",
}  # fmt: skip


def check(message):
    """Raises ValueError, which names the first field that is missing."""
    kind, present = message.DESCRIPTOR.name, message.ListFields()
    names = {field.name for field, _ in present} | {oneof.name for oneof in message.DESCRIPTOR.oneofs if message.WhichOneof(oneof.name)}
    for field in REQUIRED.get(kind, "").split():
        if field not in names:
            raise ValueError(f"{kind}.{field} is missing")
    for field, value in present:
        if field.message_type:
            for one in [value] if hasattr(value, "DESCRIPTOR") else value:
                check(one)
        elif field.enum_type and value not in field.enum_type.values_by_number:
            raise ValueError(f"{kind}.{field.name} has the value {value}, which this worker does not know")
