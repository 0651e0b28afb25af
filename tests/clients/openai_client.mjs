// Run by clients.py with OpenAI's own JavaScript client: models, completions, chat, streams, typed errors.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const client = new OpenAI({baseURL: process.argv[2], apiKey: process.argv[3], maxRetries: 0});
const greedy = {model: 'tiny', prompt: 'hello', max_tokens: 6, temperature: 0};

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, ['tiny']);

const whole = await client.completions.create(greedy);
let text = '';
let usage = null;
const stream = await client.completions.create({...greedy, stream: true, stream_options: {include_usage: true}});
for await (const chunk of stream) {
  text += chunk.choices[0]?.text ?? '';
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].text);
assert.deepEqual(usage.total_tokens, whole.usage.total_tokens);

const messages = [{role: 'system', content: 'Be brief.'}, {role: 'user', content: 'hi'}];
const chat = {model: 'tiny', messages, max_tokens: 6, seed: 1};
const answer = await client.chat.completions.create({...chat, logprobs: true, top_logprobs: 2});
assert.equal(answer.choices[0].message.role, 'assistant');
assert.equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 2);
const helper = client.chat.completions.stream(chat);
assert.equal(await helper.finalContent(), answer.choices[0].message.content);

const schema = {type: 'object', properties: {city: {enum: ['Bath', 'Lyme']}}, required: ['city'], additionalProperties: false};
const kept = await client.chat.completions.create({
  ...chat, max_tokens: 200, response_format: {type: 'json_schema', json_schema: {name: 'stay', strict: true, schema}}});
assert(['Bath', 'Lyme'].includes(JSON.parse(kept.choices[0].message.content).city));
const tool = {type: 'function', function: {name: 'stay', strict: true, parameters: schema}};
const forced = await client.chat.completions.create({...chat, max_tokens: 200, tools: [tool], tool_choice: 'required'});
assert.equal(JSON.parse(forced.choices[0].message.tool_calls[0].function.arguments).city.length, 4);

const long = await client.completions.create({...greedy, max_tokens: 4000, stream: true});
for await (const chunk of long) {
  assert.equal(chunk.object, 'text_completion');
  break; // Leaving the loop aborts the request.
}

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new Error('it was accepted');
}
const wrong = await refusal(() => client.completions.create({...greedy, max_tokens: -1}));
assert(wrong instanceof OpenAI.BadRequestError && wrong.param === 'max_tokens', wrong);
const unknown = await refusal(() => client.completions.create({...greedy, model: 'another'}));
assert(unknown instanceof OpenAI.NotFoundError && unknown.param === 'model', unknown);
const stranger = new OpenAI({baseURL: process.argv[2], apiKey: 'wrong', maxRetries: 0});
assert(await refusal(() => stranger.models.list()) instanceof OpenAI.AuthenticationError);
console.log("OpenAI's JavaScript client agrees");
