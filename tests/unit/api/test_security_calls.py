"""Every call says who may make it: the table of routes against a list that a reviewer can read."""

import pytest

from tests.harness.route_table import route_table
from timerwheel.api.http.route import Need
from timerwheel.api.security.targets import TARGETS
from timerwheel.tokens import Scope

# Who may do what. A new call is to be put here by hand, by somebody who thinks about it.
EXPECTED = {
    Need.OPEN: {
        *("getHealth", "getReadiness", "console", "consoleFile"),
        # What entitles to these is the token in their path, good for one attempt at one message.
        *("acknowledgeLater", "giveBackLater", "extendLater"),
    },
    Need.TOKEN: {
        "getWheel",
        "listSlots",
        "getPeak",
        "listLevels",
        "getCluster",
        "getMetrics",
        "getLiveHistory",
        "getToken",
        "live",
    },
    Need.SEND: {
        *(
            "sendMessages",
            "sendRaw",
            "recallMessage",
            "rescheduleMessage",
            "recallMessages",
            "rescheduleMessages",
        ),
        *("beginTransaction", "commitTransaction", "rollBackTransaction"),
        *("recallKeyedMessage", "rescheduleKeyedMessage"),
        *("listSchedules", "getSchedule", "putSchedule", "deleteSchedule", "pauseSchedule"),
        *("resumeSchedule", "runSchedule", "listRuns"),
    },
    Need.RECEIVE: {
        *("readQueue", "receive", "acknowledge", "giveBack", "extend", "stream"),
        *("listGroups", "listGroupsOfTopic", "getGroup", "listGroupDeadLetters", "listDeadLetters"),
        *("createSubscription", "listSubscriptions", "getSubscription", "changeSubscription"),
        *("deleteSubscription", "pauseSubscription", "resumeSubscription", "testSubscription"),
        *("rotateSecret", "finishRotation", "getSubscriptionStats", "listAttempts", "sendAgain"),
        # To create one takes the scope send besides, as the handler says.
        *("createTask", "listTasks", "getTask", "rescheduleTask", "cancelTask", "runTask"),
        *("listTaskQueues", "getTaskQueue", "putTaskQueue"),
        *("rotateTaskQueueSecret", "finishTaskQueueRotation"),
    },
    Need.EITHER: {
        *("getMessage", "getKeyedMessage", "getHistory", "getStory", "listPending"),
        *("listTopics", "getTopic", "listTransactions"),
    },
    Need.ADMIN: {
        *("changeTopic", "pauseTopic", "resumeTopic", "purgeTopic", "deleteTopic"),
        *("putGroup", "deleteGroup", "rewindGroup"),
        *(
            "redriveGroupDeadLetters",
            "dropGroupDeadLetters",
            "moveLeader",
            "redriveDeadLetters",
            "dropDeadLetters",
        ),
    },
}
# What clients do all day; an audit of it would be a second log of the messages.
EVERYDAY = {
    *("sendMessages", "sendRaw", "recallMessage", "rescheduleMessage"),
    *("beginTransaction", "commitTransaction", "rollBackTransaction"),
    *("recallKeyedMessage", "rescheduleKeyedMessage"),
    *("receive", "acknowledge", "giveBack", "extend", "stream", "live"),
    *("rescheduleTask", "cancelTask", "runTask"),
    *("acknowledgeLater", "giveBackLater", "extendLater"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return route_table(tmp_path_factory.mktemp("data"))


def test_every_call_is_for_whom_it_is_meant(table):
    found = {need: {call.name for call in table if call.needs is need} for need in (*Need, None)}
    assert found == {**EXPECTED, None: set()}


def test_every_call_that_changes_something_lasting_is_audited(table):
    changing = {call.name for call in table if call.method != "GET"} - EVERYDAY
    assert {call.name for call in table if call.audited} == changing


def test_the_topic_of_every_path_is_known(table):
    # A path without variable parts names no topic; the files of the console are not data.
    assert {call.path_type for call in table} - {None} <= TARGETS.keys()
    assert {call.name for call in table if "{" in call.path and call.path_type is None} == {"consoleFile"}


def test_admin_is_a_scope_of_its_own_that_nothing_else_stands_for():
    assert Need.ADMIN.scopes == {Scope.ADMIN}
    assert Need.EITHER.scopes == {Scope.SEND, Scope.RECEIVE}
    assert Need.SEND.scopes.isdisjoint(Need.RECEIVE.scopes)
