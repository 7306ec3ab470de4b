// Fills in the ids of official.json: what the official tokenizers library gives
// for each case's texts, over tiny.json with the case's changes. Run by hand:
//
//	npm install tokenizers@0.23.2   # HuggingFace's own binding of the Rust library
//	node record.js
//
// A case's changes: set replaces sections, model replaces fields of the model,
// drop deletes fields of the model, vocab and merges add entries, legacy writes
// the merges as lines. official_cases_test.go makes the same ones.
const fs = require('fs');
const path = require('path');
const { Tokenizer } = require('tokenizers');

const tiny = fs.readFileSync(path.join(__dirname, 'tiny.json'), 'utf8');

function change(c) {
	const file = JSON.parse(tiny);
	Object.assign(file, c.set);
	Object.assign(file.model, c.model);
	for (const name of c.drop ?? []) delete file.model[name];
	Object.assign(file.model.vocab, c.vocab);
	file.model.merges.push(...(c.merges ?? []));
	if (c.legacy) file.model.merges = ['#version: 0.2', ...file.model.merges.map((m) => m.join(' '))];
	return JSON.stringify(file);
}

async function record() {
	const name = path.join(__dirname, 'official.json');
	const cases = JSON.parse(fs.readFileSync(name, 'utf8'));
	for (const c of cases) {
		const tokenizer = Tokenizer.fromString(change(c));
		for (const row of c.rows) {
			const ids = async (addSpecialTokens) =>
				(await tokenizer.encode(row.text, null, { addSpecialTokens })).getIds();
			row.ids = await ids(false);
			row.special = await ids(true);
		}
	}
	const rows = (c) => c.rows.map((row) => '  ' + JSON.stringify(row)).join(',\n');
	const one = (c) => JSON.stringify({ ...c, rows: 0 }).replace('"rows":0', '"rows":[\n' + rows(c) + '\n]');
	fs.writeFileSync(name, '[\n' + cases.map(one).join(',\n') + '\n]\n');
}

record();
