"""What the system says of this machine."""

from kinfolk.core import machine


def test_fields_are_of_the_first_processor(monkeypatch, tmp_path):
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("vendor_id\t: GenuineIntel\nmodel name\t: A: processor\nmodel\t: 7\n\nvendor_id\t: AuthenticAMD\n")
    monkeypatch.setattr(machine, "_CPU", cpu)
    assert machine.cpu_field("vendor_id") == "GenuineIntel"
    assert machine.cpu_field("model") == "7"
    assert machine.cpu_field("flags") == ""
    assert machine.processor() == "A: processor"
    # two kinds of one name
    cpu.write_text("model name\t: A: processor\ncpu family\t: 26\n")
    assert machine.processor() == "A: processor, family 26"


def test_a_system_without_the_file_still_names_its_processor(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_CPU", tmp_path / "none")
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    assert machine.cpu_field("vendor_id") == ""
    assert machine.processor() == machine.platform.machine()
