package main

var chatcheckMutants = table{breaks: "./tokenize/chat/chatcheck", rows: []mutant{
	{"a difference disables another feature", "Report.differs", "c.Outcome.differs() && c.Features&^c.Feature&f == 0", "c.Outcome.differs()", "TestCheckNamesTheFeature"},
	{"a difference disables all that the conversation uses", "Report.differs", "f |= c.Feature\n", "f |= c.Features\n", "TestCheckNamesTheFeature"},
	{"one conversation of a feature shows a difference", "Report.differs", "c.Features&^c.Feature&f == 0", "c.Features&f == 0", "TestReportPrints"},
	{"tokens are not compared", "port.ask", "slices.Equal(a.Here.Tokens, a.Engine.Tokens)", "slices.Equal(a.Here.Tokens, a.Here.Tokens)", "TestCheckNamesTheFeature"},
	{"a busy engine differs", "port.post", "return nil, \"\", fmt.Errorf(\"%s is busy: %s\", p.base, said)", "return nil, said, nil", "TestCheckWithoutAnAnswer"},
	{"a failing engine differs", "port.post", "return nil, \"\", &failure{fmt.Errorf(\"%s failed: %s\", p.base, said)}", "return nil, said, nil", "TestCheckWithoutAnAnswer"},
	{"a busy engine is asked on", "port.post", "return nil, \"\", fmt.Errorf(\"%s is busy: %s\", p.base, said)", "return nil, \"\", &failure{fmt.Errorf(\"%s is busy: %s\", p.base, said)}", "TestCheckWithoutAnAnswer"},
	{"an engine without chats is a verdict", "Engine.Check", "if i == 0 && a.Outcome == EngineRefuses ||", "if i < 0 && a.Outcome == EngineRefuses ||", "TestCheckErrors"},
	{"what was excluded is not compared", "port.ask", "m.RenderAnyway(request, nil)", "m.Render(request, nil)", "TestChecksDoNotSeeEachOther"},
	{"what is not scorable differs", "port.ask", "case errors.Is(refusal, chat.ErrNotScorable):", "case false:", "TestReport"},
	{"what both refuse differs", "port.ask", "case refusal != nil && a.Engine.Refusal != \"\":", "case false:", "TestReport"},
	{"what the engine refuses is no difference", "Outcome.differs", "o == EngineRefuses || ", "", "TestReport"},
	{"what the engine takes is no difference", "Outcome.differs", " || o == EngineTakes", "", "TestReport"},
	{"no tokens are a difference", "port.tokens", "if len(answer.Tokens) == 0 {", "if false {", "TestCheckErrors"},
	{"a /v1 stays", "Engine.dial", "strings.TrimSuffix(u.Path, \"/v1\")", "u.Path", "TestCheckErrors"},
	{"a password is told", "Engine.dial", "http.DefaultClient), u.Redacted(), u,", "http.DefaultClient), u.String(), u,", "TestCheckErrors"},
	{"a difference within a character", "Conversation.firstByte", "for at > 0 && (!runeStarts(here, at) || !runeStarts(engine, at)) {", "for false {", "TestReport"},
}}
