import pytest

import blockscale as bs
from blockscale.formats import E5M2, Float, Format, parse_spec
from conftest import ODD_CODEBOOK


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("nvfp4", 4.5),
        ("mxfp4", 4.25),
        ("mxfp6_e2m3", 6.25),
        ("mxfp6_e3m2", 6.25),
        ("mxfp8", 8.25),
        ("mxfp8_e5m2", 8.25),
        ("kbit2", 2.25),
        ("kbit3", 3.25),
        ("kbit4", 4.25),
        ("kbit5", 5.25),
        ("bnb_nf4", 4.5),
        ("bnb_fp4", 4.5),
    ],
)
def test_bits_per_value(name, bits):
    assert bs.format(name).bits_per_value == bits


def test_spec_roundtrips(fmt):
    again = parse_spec(fmt.spec)
    assert again.spec == fmt.spec
    if not fmt.is_codebook:
        assert again == fmt


def test_names_and_specs_are_looked_up():
    assert bs.format("NVFP4") is bs.NVFP4
    assert bs.format("mxfp6-e2m3") is bs.MXFP6_E2M3
    assert bs.format("e2m1/16:ue4m3:amax") == bs.NVFP4
    assert bs.format(bs.KBIT3) is bs.KBIT3


@pytest.mark.parametrize(
    ("name", "nearest"), [("nvfp5", "nvfp4"), ("mxpf4", "mxfp4"), ("kbit7", "kbit")]
)
def test_unknown_names_get_the_nearest_one(name, nearest):
    with pytest.raises(ValueError, match=f"did you mean '{nearest}"):
        bs.format(name)


def test_not_a_name():
    with pytest.raises(TypeError, match="got int"):
        bs.format(4)


def test_equality_is_of_meaning_not_of_names():
    assert bs.NVFP4.replace(name="mine") == bs.NVFP4
    assert bs.NVFP4.replace(block=32) != bs.NVFP4
    assert hash(bs.NVFP4.replace(name="mine")) == hash(bs.NVFP4)
    assert bs.KBIT3.replace(codebook=ODD_CODEBOOK) != bs.KBIT3


def test_replace_makes_a_users_own_format():
    mine = bs.KBIT3.replace(codebook=ODD_CODEBOOK, block=64, scale="ue4m3")
    assert mine.spec == "codebook3/64:ue4m3:pow2"
    assert len(mine.element.values) == 8
    assert mine.name == "kbit3-custom"
    assert bs.KBIT3.replace(block=32).name == "kbit3"
    assert str(bs.NVFP4.replace(name="nv", element="e4m3")) == "nv"
    assert "4.5 bits/value" in repr(bs.NVFP4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 48}, "power of two from 8 to 4096, got 48"),
        ({"block": 4}, "power of two from 8 to 4096, got 4"),
        ({"scale": "e9m9"}, "unknown scale element 'e9m9': use one of e8m0"),
        ({"scale": E5M2}, "e5m2 is not a scale"),
        ({"scale": "e8m0"}, "e8m0 scales reach any amax by themselves: set tensor_scale='none'"),
        ({"scale": "f32"}, "f32 scales reach any amax by themselves"),
        ({"scale": "e8m0", "tensor_scale": "pow2"}, "e8m0 scales reach any amax by themselves"),
        ({"block": 16.0}, "power of two from 8 to 4096, got 16.0"),
        ({"element": Float(name="e4m3", exponent=4, mantissa=3)}, "e4m3 names Float"),
        ({"element": Float(name="e3m4", exponent=3, mantissa=4, shift=4)}, "e3m4 names Float"),
        ({"element": "f4"}, "unknown element 'f4'"),
        ({"element": "e6m5"}, "elements have 2 to 8 bits"),
        ({"tensor_scale": "max"}, "must be 'none', 'amax' or 'pow2'"),
        ({"element": "e2m1", "codebook": [0.0, 1.0]}, "either element or codebook"),
        ({"codebook": [0.0, 0.5, 1.0]}, "2 bits need 4 values, got 3"),
    ],
)
def test_bad_formats_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        bs.NVFP4.replace(**change)


def test_a_codebook_keeps_the_number_of_its_bits():
    with pytest.raises(ValueError, match="3 bits need 8 values, got 16"):
        bs.KBIT3.replace(codebook=[i / 16 for i in range(16)])


def test_elements_are_objects():
    with pytest.raises(TypeError, match=r"NVFP4.replace\(element='e4m3'\)"):
        Format(name="x", element="e2m1", block=16, scale=bs.NVFP4.scale)


def test_far_off_names_get_no_guess():
    with pytest.raises(ValueError, match="unknown format 'zzzz': Known"):
        bs.format("zzzz")


def test_bad_specs_are_refused():
    with pytest.raises(ValueError, match="is not a format spec"):
        bs.format("e2m1/16")


def test_formats_are_frozen():
    with pytest.raises(AttributeError):
        bs.NVFP4.block = 32
    assert isinstance(bs.NVFP4, Format)
