package main

var chatcheckMutants = table{breaks: "./tokenize/chat/chatcheck", rows: []mutant{
	{"a difference has no consequence", "Engine.Check", "m.Refuse(fmt.Errorf(\"checking %s: %w\", c.name, difference))", "_ = difference", "TestCheck"},
	{"tokens are not compared", "compare", "slices.Equal(got, want)", "slices.Equal(got, got)", "TestCheck"},
	{"an engine without chats is a verdict", "Engine.Check", "if i == 0 && refused != \"\" {", "if i < 0 && refused != \"\" {", "TestCheckAgainstAnotherEngine"},
	{"what is not scorable differs", "compare", "case errors.Is(err, chat.ErrNotScorable):\n\t\treturn nil, nil", "case errors.Is(err, chat.ErrNotScorable):\n\t\treturn err, nil", "TestCheck"},
	{"what both refuse differs", "compare", "case err != nil && refused != \"\":", "case false:", "TestCheck"},
	{"what the engine refuses is no difference", "compare", "\tcase refused != \"\":\n", "\tcase refused != \"\":\n\t\treturn nil, nil\n\tcase false:\n", "TestCheck"},
	{"no tokens are a difference", "Engine.tokens", "if len(answer.Tokens) == 0 {", "if false {", "TestCheckUnreachable"},
}}
