"""Stored runs against vLLM, as the documentation shows them."""

from bench.serving_tables import cases_table, soak_table, speed_facts, speed_table, steps_table

SPEED = {
    "model": "random Llama",
    "format": "nvfp4",
    "dtype": "float32",
    "rounds": 7,
    "threads": 1,
    "speed_beside_plain_by_x": {
        "int8": {"8 at once": {"median": 1.5, "lowest": 1.25, "highest": 1.75}}
    },
}


def test_cases_of_a_test_are_counted_by_their_outcome():
    found = cases_table(
        {
            "test_ranks.py::test_two_ranks[a]": "passed",
            "test_ranks.py::test_two_ranks[b]": "failed",
            "test_tokens.py::test_a_quantised_head": "passed",
        }
    ).splitlines()
    assert found[2:] == ["| two ranks | 1 passed, 1 failed |", "| a quantised head | 1 passed |"]


def test_a_speed_is_told_with_its_spread_and_its_threads():
    assert speed_table(SPEED).splitlines()[2] == (
        "| NVFP4, x in int8 | 8 at once | 1.50 x (1.25 to 1.75) |"
    )
    assert speed_facts(SPEED).startswith("one thread for the products; random Llama")
    assert speed_facts(SPEED | {"threads": 2}).startswith("2 threads")


def test_what_is_not_linear_in_a_step_is_the_rest():
    times = {"decode": {"step": 47.0, "linear": 30.5}, "prompts": {"step": 9.0, "linear": 8.0}}
    found = steps_table({"prompt_tokens": 64, "cpu_ms": {"NVFP4": times}}).splitlines()
    assert found[2:] == [
        "| a token of each | NVFP4 | 47.0 | 30.5 | 16.5 |",
        "| prompts, 64 tokens | NVFP4 | 9.0 | 8.0 | 1.0 |",
    ]


def test_a_soak_tells_what_was_lost_when():
    run = {
        "requests": {
            "finished": 50,
            "aborted_by_clients": 17,
            "lost_when_the_server_was_killed": 13,
            "failed_otherwise": 0,
        },
        "wrong": 0,
        "first_token": {"p50_ms": 1.0, "p99_ms": 2.0},
        "request": {"p50_ms": 3.0, "p99_ms": 4000.0},
        "resident_mib": [1944.0, 1944.6],
    }
    found = soak_table(run)
    assert "| lost when the server was killed, and at other times | 13, and 0 |" in found
    assert "p50 3 ms, p99 4,000 ms" in found
